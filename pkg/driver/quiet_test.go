package driver

import (
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Of an unfriendly socket only our own line is seen, even with gRPC's own log turned up. Its log is process-wide:
// the test looks at a process that it starts.
func TestGRPCItselfIsQuiet(t *testing.T) {
	t.Parallel()
	if path := os.Getenv("DRIVER_TEST_SOCKET"); path != "" {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // until the parent has seen enough
			cancel()
		}()
		if _, err := Connect(ctx, Config{Address: path, Timeout: time.Minute}); err == nil {
			t.Error("connected to a stranger")
		}
		return
	}
	path := socketFile(t)
	l := listenUnix(t, path)
	var accepted atomic.Int32
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
			accepted.Add(1)
		}
	}()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestGRPCItselfIsQuiet$")
	cmd.Env = append(os.Environ(), "DRIVER_TEST_SOCKET="+path, "GRPC_GO_LOG_SEVERITY_LEVEL=info", "GRPC_GO_LOG_VERBOSITY_LEVEL=99")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr output
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the socket was tried again, and the wait told", func() bool {
		return accepted.Load() >= 3 && strings.Contains(stderr.String(), "\n")
	})
	_ = stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s%s", err, stdout.String(), stderr.String())
	}
	for line := range strings.Lines(stderr.String()) {
		if !strings.Contains(line, "Waiting for the CSI driver") { // told once, and every ten seconds on a slow machine
			t.Errorf("a line that is not the one about waiting: %s", line)
		}
	}
}

// output is what a process writes, and can be read meanwhile.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
