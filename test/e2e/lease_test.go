package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

// line is a TCP line to the API server that can be cut: for one sidecar the server is away then, for all others not.
type line struct {
	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu    sync.Mutex
	isCut bool
	ends  []net.Conn
}

// newLine returns a line to the API server and a kubeconfig that leads through it.
func newLine(t *testing.T, kubeconfig string) (*line, string) {
	t.Helper()
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	server := config.Clusters[config.Contexts[config.CurrentContext].Cluster]
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is closed with the test
	if err != nil {
		t.Fatal(err)
	}
	l := &line{target: strings.TrimPrefix(server.Server, "https://"), listener: listener}
	server.Server = "https://" + listener.Addr().String()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	l.running.Go(l.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		l.set(true)
		l.running.Wait()
	})
	return l, file
}

func (l *line) accept() {
	for {
		near, err := l.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", l.target) //nolint:noctx // it is closed with the line
		if err != nil {
			_ = near.Close()
			continue
		}
		l.mu.Lock()
		cut := l.isCut
		l.ends = append(l.ends, near, far)
		l.mu.Unlock()
		if cut {
			_, _ = near.Close(), far.Close()
			continue
		}
		l.running.Go(func() { _, _ = io.Copy(far, near); _ = far.Close() })
		l.running.Go(func() { _, _ = io.Copy(near, far); _ = near.Close() })
	}
}

// set cuts the line, with all that goes over it, or mends it.
func (l *line) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut = cut
	if cut {
		for _, end := range l.ends {
			_ = end.Close()
		}
		l.ends = nil
	}
}

// Another holder ends the term: the call at hand may end and its PersistentVolume is saved, then the process ends
// with 1 and says who holds the lease.
func TestALostLeaseEndsTheProcess(t *testing.T) {
	t.Parallel()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
	class := w.Class(t, fixture.Class("c"))
	rule, release := memdriver.Block("CreateVolume")
	w.Driver.Add(rule)
	leader := startCandidate(t, w, "first", "--timeout=1m")
	waitForHolder(t, w, "first")
	w.Claim(t, fixture.Claim("data").Class(class))
	if _, err := w.Driver.WaitStarted(t.Context(), "CreateVolume", 1); err != nil {
		t.Fatal(err)
	}
	steal(t, w, leaseName(w))
	leader.Says(t, "No new work, calls in flight may end", soon)
	release()
	if code := leader.Exits(t, soon); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if log := leader.Log(); !strings.Contains(log, "the leader lease is lost") || !strings.Contains(log, "thief") {
		t.Error("the log does not say that and to whom the lease is lost")
	}
	pvs, err := w.PVs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if volumes := w.Driver.Volumes(); len(pvs) != 1 || len(volumes) != 1 || volumes[0].Name != pvs[0] {
		t.Errorf("PVs %v and volumes %v, want one of each of one name", pvs, volumes)
	}
	waitForHolder(t, w, "thief")
}

// A leader does not wait for its driver for ever: a replica whose driver lives gets its chance after 30 s. Before, it
// tells the users of the claims that wait.
func TestALeaderWithoutADriver(t *testing.T) {
	t.Parallel()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
	leader := startCandidate(t, w, "first")
	waitForHolder(t, w, "first")
	w.Driver.Stop()
	leader.Says(t, "Lost the connection to the CSI driver", soon)
	w.Claim(t, fixture.Claim("data").Class(w.Class(t, fixture.Class("c"))))
	if message := w.Event(t, "data", "DriverNotConnected"); !strings.Contains(message, w.Driver.Name()) || !strings.Contains(message, "socket") {
		t.Errorf("the event of the claim says %q", message)
	}
	if status, metrics, err := leader.Get(t.Context(), "/metrics"); err != nil || status != http.StatusOK ||
		!strings.Contains(metrics, fmt.Sprintf("driver_connected{driver_name=%q} 0", w.Driver.Name())) {
		t.Errorf("the metrics do not tell of the driver: status %d, %v", status, err)
	}
	if code := leader.Exits(t, time.Minute); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	leader.Says(t, "the driver may be away for 30s and no longer", soon)
	waitForHolder(t, w, "")
}

// steal gives the lease to "thief" for an hour.
func steal(t *testing.T, w *sidecar.World, name string) {
	t.Helper()
	leases := w.Client.CoordinationV1().Leases(w.Namespace)
	if err := cluster.Modify(t.Context(), name, leases.Get, leases.Update, func(lease *coordinationv1.Lease) {
		now := metav1.NowMicro()
		lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: new("thief"), LeaseDurationSeconds: new(int32(3600)), RenewTime: &now, AcquireTime: &now}
	}); err != nil {
		t.Fatal(err)
	}
}

func leaseName(w *sidecar.World) string { return strings.ReplaceAll(w.Driver.Name(), ".", "-") }

// A leader that cannot reach the API server ends within renew deadline and retry period, here 10 s and 1 s; a shorter
// absence costs nothing.
func TestALeaderWithoutAnAPIServer(t *testing.T) {
	t.Parallel()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
	class := w.Class(t, fixture.Class("c"))
	api, kubeconfig := newLine(t, w.Kubeconfig)
	w.Kubeconfig = kubeconfig
	leader := startCandidate(t, w, "first", "--leader-election-lease-duration=14s", "--leader-election-renew-deadline=10s")
	waitForHolder(t, w, "first")

	api.set(true)
	leader.Says(t, "Cannot renew the leader lease", soon)
	api.set(false)
	w.Claim(t, fixture.Claim("data").Class(class))
	w.Bound(t, "data")
	if !leader.Running() {
		t.Fatal("an absence shorter than the renew deadline ended the leader")
	}

	api.set(true)
	// Three seconds more are for events that cannot be written any more, the rest for a busy machine.
	if code := leader.Exits(t, 30*time.Second); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	leader.Says(t, "\"Ending\"", 0)
	if _, end, _ := strings.Cut(leader.Log(), "\"Ending\""); !strings.Contains(end, "the leader lease is lost: not renewed for") {
		t.Error("the last line does not say that the lease is lost, and why")
	}
}

// Both replicas serve all pages; the one metric tells who leads.
func TestPagesOfLeaderAndStandby(t *testing.T) {
	t.Parallel()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
	first := startCandidate(t, w, "first")
	waitForHolder(t, w, "first")
	first.MustBeReady(t)
	second := startCandidate(t, w, "second")
	second.MustBeReady(t)
	second.Says(t, "Standing by", sidecar.Patience)
	for process, leads := range map[*sidecar.Sidecar]string{first: "1", second: "0"} {
		for _, path := range []string{"/healthz", "/healthz/leader-election", "/readyz"} {
			if status, body, err := process.Get(t.Context(), path); err != nil || status != http.StatusOK || body != "ok" {
				t.Errorf("%s answers %d %q, %v, want 200 ok", path, status, body, err)
			}
		}
		_, body, err := process.Get(t.Context(), "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			`leader_election_master_status{name="` + leaseName(w) + `"} ` + leads,
			"process_start_time_seconds ", "go_goroutines ", "promhttp_metric_handler_requests_in_flight 1", "workqueue_depth{",
			`csi_sidecar_operations_seconds_count{driver_name="` + w.Driver.Name() + `",`,
		} {
			if got := strings.Count(body, "\n"+want); got == 0 || strings.HasPrefix(want, "process_") && got != 1 {
				t.Errorf("%d lines begin with %q", got, want)
			}
		}
		if strings.Contains(body, "apiserver_") || strings.Contains(body, "unknown-driver") {
			t.Error("there are metrics of others, or calls of a driver without a name")
		}
		wantStatus(t, process, "/debug/pprof/", http.StatusNotFound)
		wantStatus(t, process, "/nothing", http.StatusNotFound)
	}
}

// A second process of the pod (an argument that is no flag's, kubectl exec) stands by beside the leader, and leaves the lease
// alone when it ends. A new container of the pod goes on where the old one was killed: it can tell that the holder is dead.
func TestProcessesOfOnePod(t *testing.T) {
	t.Parallel()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
	first := startCandidate(t, w, "pod.one")
	holder := waitForHolder(t, w, "pod-one")
	second := startCandidate(t, w, "pod.one")
	second.Says(t, "Standing by", sidecar.Patience)
	second.Terminate()
	if code := second.Exits(t, soon); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if now := waitForHolder(t, w, "pod-one"); now != holder || !first.Running() {
		t.Errorf("the lease is held by %q, want still by %q", now, holder)
	}
	if strings.Contains(second.Log(), "Leading") {
		t.Error("the second process has led")
	}

	first.Kill()
	again := startCandidate(t, w, "pod.one")
	again.Says(t, "Leading", sidecar.Patience)
	// A stranger would have to wait for the rest of the lease, two minutes.
	if strings.Contains(again.Log(), "Standing by") {
		t.Error("the new container of the pod stood by")
	}
	w.Claim(t, fixture.Claim("data").Class(w.Class(t, fixture.Class("c"))))
	w.Bound(t, "data")
}

// Without rights the process lives, is well, and says which rule is missing.
func TestALeaseThatIsForbiddenIsTold(t *testing.T) {
	t.Parallel()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
	o := w.Options("--leader-election", "--leader-election-namespace=default")
	process := sidecar.Start(t, o)
	process.Says(t, "The leader lease may not be used", sidecar.Patience)
	if !strings.Contains(process.Log(), "coordination.k8s.io") {
		t.Error("the log does not name the rule")
	}
	wantStatus(t, process, "/readyz", http.StatusServiceUnavailable)
	wantStatus(t, process, "/healthz/leader-election", http.StatusOK)
	if _, err := w.Client.CoordinationV1().Leases("default").Get(t.Context(), leaseName(w), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("read the lease: %v, want that there is none", err)
	}
	process.Terminate()
	if code := process.Exits(t, soon); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}
