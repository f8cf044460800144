package process

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"
)

// Not parallel: signals go to the whole test process.
func TestSignals(t *testing.T) { //nolint:paralleltest // see above
	aborted := make(chan os.Signal, 1)
	ctx, cancel := Signals(context.Background(), func(s os.Signal) { aborted <- s })
	defer cancel()
	send := func(s syscall.Signal) {
		if err := syscall.Kill(os.Getpid(), s); err != nil {
			t.Fatal(err)
		}
	}
	send(syscall.SIGTERM)
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the first signal did not end the context")
	}
	if cause := context.Cause(ctx); !errors.Is(cause, ErrSignal) || !strings.Contains(cause.Error(), "terminated") {
		t.Errorf("cause %v, want ErrSignal with the signal", cause)
	}
	select {
	case <-aborted:
		t.Error("aborted after one signal")
	default:
	}
	send(syscall.SIGINT)
	select {
	case s := <-aborted:
		if s != os.Interrupt {
			t.Errorf("aborted by %s", s)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the second signal did not abort")
	}
	cancel()
	cancel()
}

func TestWriteTermination(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "termination-log")
	if err := WriteTermination(name, "x"); err == nil {
		t.Error("a file that was not there was made")
	}
	if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat: %v, want no file", err)
	}
	for what, tc := range map[string]struct{ message, want string }{
		"a message replaces the one before": {"driver lost", "driver lost"},
		"a long one is cut":                 {strings.Repeat("x", 5000), strings.Repeat("x", 4096)},
		"no letter is cut in half":          {"x" + strings.Repeat("ü", 3000), "x" + strings.Repeat("ü", 2047)},
	} {
		if err := os.WriteFile(name, []byte("a much older and longer message"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := WriteTermination(name, tc.message); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != tc.want || !utf8.Valid(got) {
			t.Errorf("%s: %d bytes, want %d", what, len(got), len(tc.want))
		}
	}
}
