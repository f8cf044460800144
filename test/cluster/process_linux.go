package cluster

import "syscall"

// childAttributes: a process group of its own keeps Ctrl-C of the terminal away from the child.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
