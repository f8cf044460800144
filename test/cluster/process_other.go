//go:build !linux

package cluster

import "syscall"

// childAttributes: only Linux can tie a child's life to that of its parent.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
