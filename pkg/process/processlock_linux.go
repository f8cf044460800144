package process

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// takeProcessLock binds an abstract unix socket of that name and keeps it until the process ends. The kernel gives the name
// to one socket of a network namespace at a time, and frees it with the process, however that ends; a stopped process
// keeps it. Other processes may be in the way of that, and none can hold the name beside us.
//
// The result says which name in which network namespace of which boot this is: two holders with one result have held one
// socket, one after the other. Containers of a pod share its network namespace, a restarted one comes back to it.
func takeProcessLock(name string) (place string, err error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot's id: %w", err)
	}
	namespace, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return "", fmt.Errorf("read the network namespace: %w", err)
	}
	// Not through package net: its sockets are closed when nothing refers to them any more.
	socket, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("make a unix socket: %w", err)
	}
	if err := syscall.Bind(socket, &syscall.SockaddrUnix{Name: "@" + name}); err != nil {
		_ = syscall.Close(socket)
		return "", fmt.Errorf("bind the abstract unix socket %s (another process of the pod may have it): %w", name, err)
	}
	return strings.Join([]string{name, namespace, strings.TrimSpace(string(boot))}, " "), nil
}
