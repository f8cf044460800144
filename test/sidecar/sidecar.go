package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
)

// Options describes how the sidecar is started.
type Options struct {
	// Socket of the driver. Empty: no --csi-address is given.
	Socket string
	// Kubeconfig is the file with the sidecar's rights. Empty: no --kubeconfig is given.
	Kubeconfig string
	// NoHTTP leaves out --http-endpoint; the sidecar has no readiness then.
	NoHTTP bool
	// LogFile gets the log, appended, and is not shown when the test fails. Empty: a file of its own that is.
	LogFile string
	// Args come after the arguments made from the above, so that they win.
	Args []string
	// Env is added to the environment, as KEY=value.
	Env []string
}

// Sidecar is a running csi-provisioner, or one that has ended. Its methods may be called concurrently.
type Sidecar struct {
	*cluster.Process
	log  string // its file
	from int64  // where in that its own lines begin

	mu      sync.Mutex
	address string // guarded by mu: of its HTTP server; "" until the log has told
}

var started atomic.Int64

// Start starts the sidecar and does not wait for anything. It is killed when the test ends; its log is shown
// when the test has failed.
func Start(tb testing.TB, o Options) *Sidecar {
	tb.Helper()
	s := &Sidecar{}
	var args []string
	if o.Socket != "" {
		args = append(args, "--csi-address="+o.Socket)
	}
	if o.Kubeconfig != "" {
		args = append(args, "--kubeconfig="+o.Kubeconfig)
	}
	if !o.NoHTTP {
		// The kernel picks the port when the server is there, so that nobody else can have it.
		args = append(args, "--http-endpoint=127.0.0.1:0")
	}
	name := fmt.Sprintf("csi-provisioner-%d", started.Add(1))
	log := o.LogFile
	if log == "" {
		log = filepath.Join(tb.TempDir(), name+".log")
	}
	s.log = log
	if info, err := os.Stat(log); err == nil {
		s.from = info.Size()
	}
	root, err := cluster.RepoRoot()
	if err != nil {
		tb.Fatal(err)
	}
	// The race detector waits a second at the end of a process, for reports that may come.
	race := os.Getenv("GORACE") + " atexit_sleep_ms=50 suppressions=" + filepath.Join(root, "test/sidecar/race.supp")
	env := []string{"KUBECONFIG=", "GORACE=" + race}
	process, err := cluster.StartProcess(cluster.Command{
		Name: name, Path: Binary(tb), Args: append(args, o.Args...), Env: append(env, o.Env...), LogFile: log,
	})
	if err != nil {
		tb.Fatal(err)
	}
	s.Process = process
	tb.Cleanup(func() {
		s.Stop(0)
		if _, race, found := strings.Cut(s.Log(), "WARNING: DATA RACE"); found {
			tb.Errorf("the sidecar has a data race:%s", head(race, raceShown))
		}
		if tb.Failed() && o.LogFile == "" {
			tb.Logf("log of %s:\n%s", name, tail(s.Log(), logShown))
		}
	})
	return s
}

// How many bytes are shown for a test that failed: of the end of a log, and of the first report of the race detector.
const (
	logShown  = 20_000
	raceShown = 8_000
)

func head(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return text[:most] + "…"
}

func tail(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return "…" + text[len(text)-most:]
}

// serving is the line that tells the address of the HTTP server.
var serving = regexp.MustCompile(`"Serving HTTP" address="([^"]+)"`)

// waitForAddress returns the address of the HTTP server as soon as the log tells it.
func (s *Sidecar) waitForAddress(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.address == "" {
		running := s.Running() // before the look: the last line of a process counts
		text, err := s.own()
		if err != nil {
			return "", err
		}
		if match := serving.FindSubmatch(text); match != nil {
			s.address = string(match[1])
			break
		}
		if !running {
			return "", errors.New("the sidecar has ended and never served HTTP")
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("wait until the sidecar serves HTTP: %w", context.Cause(ctx))
		case <-time.After(pollEvery):
		}
	}
	return s.address, nil
}

// own returns the sidecar's part of the log.
func (s *Sidecar) own() ([]byte, error) {
	file, err := os.Open(s.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(s.from, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(file)
}

// Get asks the sidecar's HTTP server, once there is one; an error when it cannot be reached.
func (s *Sidecar) Get(ctx context.Context, path string) (status int, body string, err error) {
	address, err := s.waitForAddress(ctx)
	if err != nil {
		return 0, "", err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// Ready waits until /readyz answers 200; an error when the sidecar ends first, or ctx.
func (s *Sidecar) Ready(ctx context.Context) error {
	said := "nothing"
	for {
		status, body, err := s.Get(ctx, "/readyz")
		if err == nil && status == http.StatusOK {
			return nil
		}
		if err == nil {
			said = fmt.Sprintf("%d %s", status, strings.TrimSpace(body))
		}
		select {
		case <-s.Done():
			code, _ := s.Wait(ctx)
			return fmt.Errorf("the sidecar ended with %d before it was ready:\n%s", code, tail(s.Log(), 2000))
		case <-ctx.Done():
			return fmt.Errorf("wait until the sidecar is ready: %w; it said %s", context.Cause(ctx), said)
		case <-time.After(pollEvery):
		}
	}
}

// MustBeReady is Ready within Patience; the test ends when that fails.
func (s *Sidecar) MustBeReady(tb testing.TB) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	if err := s.Ready(ctx); err != nil {
		tb.Fatal(err)
	}
}

const pollEvery = 20 * time.Millisecond

// Exits waits at most d and returns the exit code; the test ends when it does not come.
func (s *Sidecar) Exits(tb testing.TB, d time.Duration) int {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), d)
	defer cancel()
	code, err := s.Wait(ctx)
	if err != nil {
		tb.Fatalf("%v; log:\n%s", err, tail(s.Log(), 2000))
	}
	return code
}

// Says waits until the log contains the text; the test ends when it does not within d.
func (s *Sidecar) Says(tb testing.TB, text string, d time.Duration) {
	tb.Helper()
	deadline := time.Now().Add(d)
	for !strings.Contains(s.Log(), text) {
		if time.Now().After(deadline) {
			tb.Fatalf("the log does not say %q within %s:\n%s", text, d, tail(s.Log(), 2000))
		}
		time.Sleep(pollEvery)
	}
}

// Terminate sends SIGTERM.
func (s *Sidecar) Terminate() {
	_ = s.Signal(syscall.SIGTERM) // It can fail only for a process that has ended.
}

// Kill sends SIGKILL and waits until the process is gone.
func (s *Sidecar) Kill() { s.Stop(0) }
