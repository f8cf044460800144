package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// These make the test binary be the program, with work that a test chooses.
const (
	envProgram     = "CSI_PROVISIONER_TEST_WORK"
	envTermination = "CSI_PROVISIONER_TEST_TERMINATION"
)

func TestMain(m *testing.M) {
	work, ok := os.LookupEnv(envProgram)
	if !ok {
		os.Exit(m.Run())
	}
	p := program{
		args: os.Args, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv,
		accountDir: "/nonexistent", terminationLog: os.Getenv(envTermination), exit: os.Exit,
		run: func(ctx context.Context, cfg Config) error {
			klog.FromContext(ctx).Info("Working", "socket", cfg.Driver.Address, "processors", runtime.GOMAXPROCS(0))
			switch work {
			case "run":
				return run(ctx, cfg)
			case "fail":
				return errors.New("the driver has another name now")
			case "hang":
				select {}
			}
			<-ctx.Done()
			return nil
		},
	}
	os.Exit(p.main())
}

// outcome is how a process ended.
type outcome struct {
	code           int
	stdout, stderr string
	lastWords      string // in the termination log
}

type child struct {
	cmd         *exec.Cmd
	stdout      bytes.Buffer
	read        chan struct{} // closed when stderr has ended
	termination string

	mu     sync.Mutex
	stderr strings.Builder // guarded by mu
}

func (p *child) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.String()
}

func start(t *testing.T, work string, env []string, args ...string) *child {
	t.Helper()
	p := &child{read: make(chan struct{}), termination: filepath.Join(t.TempDir(), "termination-log")}
	if err := os.WriteFile(p.termination, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.CommandContext(t.Context(), os.Args[0], args...)
	p.cmd.Env = append([]string{envProgram + "=" + work, envTermination + "=" + p.termination}, env...)
	p.cmd.Stdout = &p.stdout
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.read)
		lines := bufio.NewReader(stderr)
		for {
			line, err := lines.ReadString('\n')
			p.mu.Lock()
			p.stderr.WriteString(line)
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return p
}

func (p *child) wait(t *testing.T) outcome {
	t.Helper()
	<-p.read
	err := p.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatalf("run: %v", exit)
	}
	words, err := os.ReadFile(p.termination)
	if err != nil {
		t.Fatal(err)
	}
	return outcome{code: p.cmd.ProcessState.ExitCode(), stdout: p.stdout.String(), stderr: p.said(), lastWords: string(words)}
}

// waitFor returns when the process has said so on stderr.
func (p *child) waitFor(t *testing.T, phrase string) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !strings.Contains(p.said(), phrase) {
		select {
		case <-p.read:
			t.Fatalf("ended before it said %q:\n%s", phrase, p.said())
		case <-deadline:
			t.Fatalf("does not say %q:\n%s", phrase, p.said())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (p *child) waitWorking(t *testing.T) {
	t.Helper()
	p.waitFor(t, "Working")
}

func TestVersionAlwaysWins(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--version"},
		{"--version", "--node-deployment", "--enable-capacity"},
		{"--feature-gates=Foo=true", "--logging-format=xml", "--http-endpoint=:1", "--metrics-address=:2", "--version"},
	} {
		got := start(t, "fail", nil, args...).wait(t)
		if want := os.Args[0] + " unknown\n"; got.code != 0 || got.stdout != want || got.stderr != "" {
			t.Errorf("%q: exit %d, stdout %q, stderr %q, want 0 and just %q", args, got.code, got.stdout, got.stderr, want)
		}
	}
}

func TestHelpGoesToStdout(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("testdata/help.golden")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--help"}, {"-h"}, {"--csi-address=x", "--help"}} {
		got := start(t, "fail", nil, args...).wait(t)
		if got.code != 0 || got.stdout != string(want) || got.stderr != "" {
			t.Errorf("%q: exit %d, stderr %q, %d bytes on stdout, want 0 and the recorded help", args, got.code, got.stderr, len(got.stdout))
		}
	}
}

func TestParseErrorIsShort(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--nosuch"}, {"-csi-address=x"}, {"--worker-threads=-1"}, {"--timeout=10"}, {"--provisioner=x"}, {"--alsologtostderr"},
		{"--feature-gates=Topology=maybe"}, {"--version", "--nosuch"},
	} {
		got := start(t, "fail", nil, args...).wait(t)
		lines := strings.Split(strings.TrimSpace(got.stderr), "\n")
		if got.code != 2 || got.stdout != "" || len(lines) != 2 || !strings.Contains(lines[1], "--help") {
			t.Errorf("%q: exit %d, stdout %q, stderr %q, want 2 and two lines on stderr", args, got.code, got.stdout, got.stderr)
		}
		if got.lastWords == "" || !strings.Contains(lines[0], got.lastWords) {
			t.Errorf("%q: termination message %q, want that of the first line %q", args, got.lastWords, lines[0])
		}
	}
}

func TestAllMistakesAreToldAtOnce(t *testing.T) {
	t.Parallel()
	got := start(t, "fail", nil, "--csi-address=x", "--feature-gates=Foo=true", "--timeout=0", "--enable-capacity", "--node-deployment",
		"--leader-election", "--leader-election-lease-duration=5s", "--http-endpoint=:1", "--metrics-address=:2", "--metrics-path=m").wait(t)
	if got.code != 1 || got.stdout != "" {
		t.Errorf("exit %d, stdout %q, want 1 and nothing", got.code, got.stdout)
	}
	if strings.Contains(got.stderr, "Working") {
		t.Error("the work began all the same")
	}
	for _, want := range []string{"--csi-address", "Foo", "--timeout", "NAMESPACE", "POD_NAME", "NODE_NAME", "lease-duration (5s)", "--http-endpoint=:1", "--metrics-path"} {
		found := 0
		for line := range strings.SplitSeq(got.stderr, "\n") {
			if strings.Contains(line, "Invalid configuration") && strings.Contains(line, want) {
				found++
			}
		}
		if found == 0 {
			t.Errorf("no line mentions %q:\n%s", want, got.stderr)
		}
		if !strings.Contains(got.lastWords, want) {
			t.Errorf("the termination message does not mention %q:\n%s", want, got.lastWords)
		}
	}
}

func TestLoggingConfiguration(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--logging-format=xml"}, {"--logging-format=json", "--vmodule=a=1"}, {"--log-text-split-stream"}, {"--log-flush-frequency=0"}} {
		got := start(t, "fail", nil, args...).wait(t)
		if got.code != 1 || strings.Count(got.stderr, "logging configuration") != 1 || strings.Contains(got.stderr, "Working") {
			t.Errorf("%q: exit %d, stderr %q, want 1 and one line", args, got.code, got.stderr)
		}
	}
}

func TestJSONLog(t *testing.T) {
	t.Parallel()
	got := start(t, "fail", nil, "--logging-format=json", "--feature-gates=Topology=true", "--leader-election", "false").wait(t)
	if got.code != 1 || got.stdout != "" {
		t.Errorf("exit %d, stdout %q, want 1 and nothing", got.code, got.stdout)
	}
	lines := strings.Split(strings.TrimSpace(got.stderr), "\n")
	if len(lines) < 4 {
		t.Errorf("only %d lines", len(lines))
	}
	for _, line := range lines {
		if object := map[string]any{}; json.Unmarshal([]byte(line), &object) != nil {
			t.Errorf("not a JSON object: %s", line)
		}
	}
}

func TestFirstLinesNameVersionAndOptions(t *testing.T) {
	t.Parallel()
	got := start(t, "fail", nil, "--timeout=3s", "--leader-election", "false").wait(t)
	lines := strings.Split(got.stderr, "\n")
	for i, want := range []string{`version="unknown"`, `["--leader-election=true","--timeout=3s"]`, "write --leader-election=false"} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("line %d is %q, want %q in it", i, lines[i], want)
		}
	}
}

func TestAFatalErrorIsLoggedAndLeft(t *testing.T) {
	t.Parallel()
	got := start(t, "fail", nil).wait(t)
	const words = "the driver has another name now"
	if got.code != 1 || !strings.Contains(got.stderr, words) || got.lastWords != words {
		t.Errorf("exit %d, termination message %q, stderr %q, want 1 and %q in both", got.code, got.lastWords, got.stderr, words)
	}
}

func TestSignalStopsCleanly(t *testing.T) {
	t.Parallel()
	for _, s := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		p := start(t, "wait", nil)
		p.waitWorking(t)
		if err := p.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		got := p.wait(t)
		if got.code != 0 || got.lastWords != "" || !strings.Contains(got.stderr, "Stopped") {
			t.Errorf("%s: exit %d, termination message %q, stderr %q, want 0 and no message", s, got.code, got.lastWords, got.stderr)
		}
	}
}

// Flags of a feature that is off are not even looked at: neither when they are read, nor by what they would configure.
func TestCapacityFlagsAreInertWithoutCapacity(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--kube-api-capacity-burst=0", "--kube-api-capacity-qps=NaN", "--kube-api-capacity-qps=Inf"} {
		p := start(t, "run", nil, "--master=http://127.0.0.1:9", "--csi-address="+filepath.Join(t.TempDir(), "none.sock"), flag)
		p.waitWorking(t)
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if got := p.wait(t); got.code != 0 {
			t.Errorf("%s: exit %d, stderr %q, want 0", flag, got.code, got.stderr)
		}
	}
}

// serve runs a driver until the test ends.
func serve(t *testing.T, cfg memdriver.Config, rules ...memdriver.Rule) {
	t.Helper()
	d, err := memdriver.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	d.Add(rules...)
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
}

func TestADriverThatHidesItsCapacityIsTold(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		capabilities []memdriver.Capability
		want         int
	}{
		"it has GET_CAPACITY": {nil, 0},
		"it has not":          {[]memdriver.Capability{memdriver.CreateDelete}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := memdriver.Config{Socket: filepath.Join(t.TempDir(), "csi.sock"), Capabilities: tc.capabilities}
			serve(t, cfg)
			p := start(t, "run", []string{"NAMESPACE=ns", "POD_NAME=p"}, "--master=http://127.0.0.1:9", "--csi-address="+cfg.Socket, "--enable-capacity")
			p.waitFor(t, "Owner cannot be read")
			if got := strings.Count(p.said(), "does not claim GET_CAPACITY"); got != tc.want {
				t.Errorf("said %d times, want %d:\n%s", got, tc.want, p.said())
			}
		})
	}
}

// Whatever a start is waiting for, the signal ends it, and nothing has gone wrong.
func TestSignalEndsEachStepOfTheStart(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		noDriver bool
		rules    []memdriver.Rule
		env      []string
		args     []string
		phase    string // what it says there
	}{
		"the driver":        {noDriver: true, phase: "Waiting for the CSI driver"},
		"the driver's node": {rules: []memdriver.Rule{memdriver.Hang("NodeGetInfo", 0)}, env: []string{"NODE_NAME=n"}, args: []string{"--node-deployment", "--timeout=1m"}, phase: "/csi.v1.Node/NodeGetInfo"},
		"the owner's chain": {env: []string{"NAMESPACE=ns", "POD_NAME=p"}, args: []string{"--enable-capacity"}, phase: "Owner cannot be read"},
		"the caches":        {phase: "watch-list failed"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := memdriver.Config{Socket: filepath.Join(t.TempDir(), "csi.sock")}
			if !tc.noDriver {
				serve(t, cfg, tc.rules...)
			}
			p := start(t, "run", tc.env, append([]string{"--master=http://127.0.0.1:9", "--csi-address=" + cfg.Socket, "-v=5"}, tc.args...)...)
			p.waitFor(t, tc.phase)
			if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if got := p.wait(t); got.code != 0 || got.lastWords != "" {
				t.Errorf("exit %d, termination message %q, want 0 and none:\n%s", got.code, got.lastWords, got.stderr)
			}
		})
	}
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	p := start(t, "hang", nil)
	p.waitWorking(t)
	deadline := time.After(time.Minute)
	for {
		// The first one is taken by now or still on its way: a process that hangs ends with one more, however many.
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		select {
		case <-p.read:
			if got := p.wait(t); got.code != 1 || !strings.Contains(got.stderr, "Second signal") {
				t.Errorf("exit %d, stderr %q, want 1", got.code, got.stderr)
			}
			return
		case <-deadline:
			t.Fatal("does not end")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func TestProcessors(t *testing.T) {
	t.Parallel()
	follows := fmt.Sprintf("processors=%d", runtime.GOMAXPROCS(0)) // the test itself runs with the runtime's default
	tests := map[string]struct {
		env, args []string
		want      []string
		silent    bool // no other line speaks of it
	}{
		"not asked for":            {want: []string{"processors=1"}, silent: true},
		"asked for":                {args: []string{"--automaxprocs"}, want: []string{"follows the CPU limit", follows}},
		"asked for and taken back": {args: []string{"--automaxprocs", "--automaxprocs=false"}, want: []string{"processors=1"}, silent: true},
		"the environment":          {env: []string{"GOMAXPROCS=3"}, want: []string{"processors=3"}, silent: true},
		"the environment wins": {
			env: []string{"GOMAXPROCS=3"}, args: []string{"--automaxprocs"}, want: []string{`as the environment has it" GOMAXPROCS=3`, "processors=3"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := start(t, "fail", tc.env, tc.args...).wait(t)
			for _, want := range tc.want {
				if !strings.Contains(got.stderr, want) {
					t.Errorf("stderr %q, want %q", got.stderr, want)
				}
			}
			if tc.silent && strings.Contains(got.stderr, "GOMAXPROCS") {
				t.Errorf("stderr %q speaks of GOMAXPROCS", got.stderr)
			}
		})
	}
}
