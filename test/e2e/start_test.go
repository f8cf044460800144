package e2e

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

const soon = 20 * time.Second

func TestMistakesAreToldAndEndTheProcess(t *testing.T) {
	t.Parallel()
	driver := memdriver.Serve(t, memdriver.Config{})
	t.Cleanup(func() { // when all subtests are over
		if calls := driver.Calls(); len(calls) != 0 {
			t.Errorf("calls of the driver in spite of all: %v", calls)
		}
	})
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	tests := map[string]struct {
		options  sidecar.Options
		wantCode int
		want     []string
	}{
		"an unknown flag":    {options: sidecar.Options{Args: []string{"--volume-name-prefixx=a"}}, wantCode: 2, want: []string{"--volume-name-prefixx"}},
		"a flag of old days": {options: sidecar.Options{Args: []string{"--provisioner=a"}}, wantCode: 2, want: []string{"provisioner"}},
		"a value that is none": {
			options: sidecar.Options{Args: []string{"--timeout=10"}}, wantCode: 2, want: []string{"--timeout"},
		},
		"several mistakes at once": {
			options:  sidecar.Options{Args: []string{"--volume-name-uuid-length=0", "--timeout=-1s", "--node-deployment"}, Env: []string{"NODE_NAME="}},
			wantCode: 1, want: []string{"--volume-name-uuid-length", "--timeout", "NODE_NAME"},
		},
		"an unreadable kubeconfig": {options: sidecar.Options{Socket: driver.Socket(), Kubeconfig: nowhere}, wantCode: 1, want: []string{nowhere}},
		"a socket address that is none": {
			options: sidecar.Options{Kubeconfig: nowhere, Args: []string{"--csi-address=tcp://h:1"}}, wantCode: 1, want: []string{"tcp://h:1"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			process := sidecar.Start(t, tc.options)
			if code := process.Exits(t, soon); code != tc.wantCode {
				t.Errorf("exit code %d, want %d", code, tc.wantCode)
			}
			for _, want := range tc.want {
				if !strings.Contains(process.Log(), want) {
					t.Errorf("nothing tells about %q:\n%s", want, process.Log())
				}
			}
		})
	}
}

func TestVersionAndHelpGoToStdoutAndEndWell(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]string{"--version": sidecar.Version, "--help": "--csi-address"} {
		process := sidecar.Start(t, sidecar.Options{NoHTTP: true, Args: []string{flag, "--node-deployment"}, Env: []string{"NODE_NAME="}})
		if code := process.Exits(t, soon); code != 0 || !strings.Contains(process.Log(), want) {
			t.Errorf("%s: exit code %d, output %q", flag, code, process.Log())
		}
	}
}

// A driver that comes late is waited for; the sidecar says so and is alive, but not ready.
func TestTheDriverMayComeLate(t *testing.T) {
	t.Parallel()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{NotReady: true})
	w.Driver.Stop()
	process := sidecar.Start(t, w.Options())
	neverReadyBefore(t, process, "Waiting for the CSI driver")
	process.Says(t, w.Driver.Socket(), soon)
	wantStatus(t, process, "/readyz", http.StatusServiceUnavailable)
	wantStatus(t, process, "/healthz", http.StatusOK)

	if err := w.Driver.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Driver.WaitEnded(t.Context(), "Probe", 2); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, process, "/readyz", http.StatusServiceUnavailable)
	w.Driver.Change(func(cfg *memdriver.Config) { cfg.NotReady = false })
	process.MustBeReady(t)
	w.Claim(t, fixture.Claim("data").Class(w.Class(t, fixture.Class("c"))))
	w.Bound(t, "data")
}

// neverReadyBefore asks for readiness all the time until the log says the text: not for a moment may it be called ready.
func neverReadyBefore(t *testing.T, process *sidecar.Sidecar, text string) {
	t.Helper()
	for begin := time.Now(); !strings.Contains(process.Log(), text) && process.Running(); {
		if status, body, err := process.Get(t.Context(), "/readyz"); err == nil && status == http.StatusOK {
			t.Errorf("called ready too early: %s", body)
			return
		}
		if time.Since(begin) > sidecar.Patience {
			t.Fatalf("the log never says %q", text)
		}
		time.Sleep(time.Millisecond)
	}
}

func wantStatus(t *testing.T, process *sidecar.Sidecar, path string, want int) {
	t.Helper()
	status, body, err := process.Get(t.Context(), path)
	if err != nil || status != want {
		t.Errorf("%s answers %d %q, %v, want %d", path, status, body, err, want)
	}
}

func TestTheAPIServerMayComeLate(t *testing.T) {
	t.Parallel()
	c := cluster.StartForTest(t, cluster.Options{})
	w := sidecar.NewWorld(t, c, memdriver.Config{})
	class := w.Class(t, fixture.Class("c"))
	w.Claim(t, fixture.Claim("data").Class(class))
	c.StopAPIServer()
	process := sidecar.Start(t, w.Options())
	neverReadyBefore(t, process, "Cannot tell whether the API server")
	wantStatus(t, process, "/readyz", http.StatusServiceUnavailable)
	if err := c.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	process.MustBeReady(t)
	w.Bound(t, "data")
}
