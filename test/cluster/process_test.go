package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func shell(t *testing.T, script string) *Process {
	t.Helper()
	p, err := StartProcess(Command{
		Name: "script", Path: "/bin/sh", Args: []string{"-c", script}, Env: []string{"GREETING=hello"},
		LogFile: filepath.Join(t.TempDir(), "log"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(0) })
	return p
}

func waitForLog(t *testing.T, p *Process, want string) {
	t.Helper()
	eventually(t, "the log has "+want, func(context.Context) (bool, error) { return strings.Contains(p.Log(), want), nil })
}

func TestProcess(t *testing.T) {
	t.Parallel()
	t.Run("the exit code and both outputs are kept", func(t *testing.T) {
		t.Parallel()
		p := shell(t, "echo $GREETING; echo error >&2; exit 3")
		code, err := p.Wait(t.Context())
		if err != nil || code != 3 {
			t.Errorf("want exit code 3, got %d, %v", code, err)
		}
		if want := "hello\nerror\n"; p.Log() != want {
			t.Errorf("log: want %q, got %q", want, p.Log())
		}
		if err := p.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("a signal after the end: %v", err)
		}
	})
	t.Run("a stop lets the process end by itself", func(t *testing.T) {
		t.Parallel()
		p := shell(t, "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done")
		waitForLog(t, p, "ready")
		if code := p.Stop(time.Minute); code != 7 {
			t.Errorf("want exit code 7, got %d", code)
		}
	})
	t.Run("a stop kills what does not end in time", func(t *testing.T) {
		t.Parallel()
		p := shell(t, "trap '' TERM; echo ready; while :; do sleep 0.05; done")
		waitForLog(t, p, "ready")
		if code := p.Stop(100 * time.Millisecond); code != -1 {
			t.Errorf("want -1 for killed, got %d", code)
		}
	})
	t.Run("waiting ends with the context and leaves the process running", func(t *testing.T) {
		t.Parallel()
		p := shell(t, "sleep 600")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("want the context's error, got %v", err)
		}
		if !p.Running() {
			t.Error("the process has ended")
		}
	})
	t.Run("a program that is not there is an error", func(t *testing.T) {
		t.Parallel()
		_, err := StartProcess(Command{Name: "nothing", Path: "/no/such/program", LogFile: filepath.Join(t.TempDir(), "log")})
		if err == nil || !strings.HasPrefix(err.Error(), "start nothing: ") {
			t.Errorf("want an error with the name, got %v", err)
		}
	})
}

// parentVariable makes TestChildDiesWithItsParent play the parent.
const parentVariable = "CLUSTER_TEST_PARENT_LOG"

func TestChildDiesWithItsParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux can tie a child's life to that of its parent")
	}
	if log := os.Getenv(parentVariable); log != "" {
		p, err := StartProcess(Command{Name: "child", Path: "/bin/sleep", Args: []string{"600"}, LogFile: log})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("child", p.PID())
		select {} // Until it is killed.
	}
	t.Parallel()
	parent := exec.Command(os.Args[0], "-test.run=^TestChildDiesWithItsParent$")
	parent.Env = append(os.Environ(), parentVariable+"="+filepath.Join(t.TempDir(), "log"))
	stdout, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var word, pidText string
	_, scanErr := fmt.Fscan(stdout, &word, &pidText)
	_ = parent.Process.Kill()
	_ = parent.Wait() // Killed is what it says.
	pid, err := strconv.Atoi(pidText)
	if scanErr != nil || err != nil {
		t.Fatalf("the parent said %q %q: %v", word, pidText, errors.Join(scanErr, err))
	}
	eventually(t, "the child is gone", func(context.Context) (bool, error) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		// Where no init process reaps orphans, a dead one stays as a zombie.
		return os.IsNotExist(err) || strings.Contains(string(stat), ") Z "), nil
	})
}
