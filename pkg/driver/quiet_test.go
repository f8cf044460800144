package driver

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Of an unfriendly socket only our own line is seen, even with gRPC's own log turned up. Its log is process-wide:
// the test looks at a process that it starts.
func TestGRPCItselfIsQuiet(t *testing.T) {
	t.Parallel()
	if path := os.Getenv("DRIVER_TEST_SOCKET"); path != "" {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if _, err := Connect(ctx, Config{Address: path, Timeout: time.Minute}); err == nil {
			t.Error("connected to a stranger")
		}
		return
	}
	path := socketFile(t)
	l := listenUnix(t, path)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestGRPCItselfIsQuiet$")
	cmd.Env = append(os.Environ(), "DRIVER_TEST_SOCKET="+path, "GRPC_GO_LOG_SEVERITY_LEVEL=info", "GRPC_GO_LOG_VERBOSITY_LEVEL=99")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if out, err := cmd.Output(); err != nil {
		t.Fatalf("%v\n%s%s", err, out, stderr.String())
	}
	if got := strings.Count(stderr.String(), "\n"); got != 1 || !strings.Contains(stderr.String(), "Waiting for the CSI driver") {
		t.Errorf("%d lines, want the one about waiting:\n%s", got, stderr.String())
	}
}
