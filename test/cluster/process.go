package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Command says which program StartProcess starts.
type Command struct {
	// Name stands in errors. Required.
	Name string
	// Path is the program's file. Required.
	Path string
	// Args are its arguments, without the program's name.
	Args []string
	// Env is appended to the environment of this process; later entries win.
	Env []string
	// Dir is its working directory. Default: that of this process.
	Dir string
	// LogFile gets stdout and stderr, appended. Required.
	LogFile string
}

// Process is a child that was started and may have ended since. Its methods may be called concurrently.
type Process struct {
	command Command
	cmd     *exec.Cmd
	done    chan struct{}
	err     error // of Wait; read only after done is closed
}

// StartProcess starts a child that is killed by the kernel when this process dies, however it dies (on Linux),
// and that gets no signal from the terminal: Ctrl-C reaches only this process, which stops its children in order.
func StartProcess(command Command) (*Process, error) {
	log, err := os.OpenFile(command.LogFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: open its log: %w", command.Name, err)
	}
	defer log.Close() // The child has its own descriptor.
	cmd := exec.Command(command.Path, command.Args...)
	cmd.Env = append(os.Environ(), command.Env...)
	cmd.Dir = command.Dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = childAttributes()
	started := make(chan error)
	forks() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", command.Name, err)
	}
	p := &Process{command: command, cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// forks returns the queue of the one thread that starts children. The kernel's death signal is sent when the
// thread that forked ends, not the process, so that thread must never end.
var forks = sync.OnceValue(func() chan<- func() {
	queue := make(chan func())
	go func() {
		runtime.LockOSThread()
		for start := range queue {
			start()
		}
	}()
	return queue
})

// PID is the child's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the child has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running tells whether the child has not ended yet.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Wait blocks until the child has ended and returns its exit code; -1 means killed by a signal. The error is
// that of ctx, which leaves the child running.
func (p *Process) Wait(ctx context.Context) (exitCode int, err error) {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("wait for %s: %w", p.command.Name, context.Cause(ctx))
	}
}

// Signal sends a signal; it is no error if the child has ended.
func (p *Process) Signal(signal os.Signal) error {
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.command.Name, err)
	}
	return nil
}

// Stop sends SIGTERM, waits up to grace, then kills; it returns when the child has ended, with its exit code.
// Zero grace kills at once.
func (p *Process) Stop(grace time.Duration) (exitCode int) {
	if grace > 0 {
		_ = p.Signal(syscall.SIGTERM) // If it fails, the kill below is left.
		select {
		case <-p.done:
		case <-time.After(grace):
		}
	}
	if p.Running() {
		_ = p.cmd.Process.Kill() // Fails only when the child has ended.
	}
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// Log returns what the child wrote so far; "" when the file cannot be read.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.command.LogFile)
	if err != nil {
		return ""
	}
	return string(text)
}

// tail returns the last lines of the log, for errors.
func (p *Process) tail() string {
	const size = 3000
	file, err := os.Open(p.command.LogFile)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > size {
		if _, err := file.Seek(-size, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}

// errEnded marks a child that ended while it was being waited for, such as one whose port was taken.
var errEnded = errors.New("ended before it was ready")

// ending says how the child ended; only to be called after that.
func (p *Process) ending() error {
	if p.err != nil {
		return p.err
	}
	return errors.New("exit status 0")
}

// WaitReady asks ready again and again until it returns nil. It is an error when the child or ctx ends before;
// the error has the last answer and the end of the log.
func (p *Process) WaitReady(ctx context.Context, ready func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		last := ready(ctx)
		if last == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s %w (%w); the end of %s:\n%s", p.command.Name, errEnded, p.ending(), p.command.LogFile, p.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (%w); the end of %s:\n%s", p.command.Name, context.Cause(ctx), last, p.command.LogFile, p.tail())
		case <-tick.C:
		}
	}
}
