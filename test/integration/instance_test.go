package integration

import (
	"context"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/controllers/provision"
	"github.com/csi-sidecars/external-provisioner/pkg/driver"
	"github.com/csi-sidecars/external-provisioner/pkg/nodelocal"
	"github.com/csi-sidecars/external-provisioner/pkg/segments"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	controlplane "github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// site is a namespace with a driver and a class that have its name, and what runs there.
type site struct {
	*testing.T
	clients *cluster.Clients
	ns      string
	traffic *traffic
	events  *cluster.Events
}

// newSite makes a site. Its class binds at once, unless edit says otherwise.
func newSite(t *testing.T, edit ...func(*fixture.ClassBuilder)) *site {
	t.Helper()
	s := &site{T: t, traffic: &traffic{}}
	config := controlplane.Shared(t).Config()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return s.traffic.over(next) })
	unlimited := cluster.Limits{QPS: -1}
	var err error
	s.clients, err = cluster.NewClients(config, cluster.ClientConfig{
		Version: "test", Provisioning: unlimited, Capacity: unlimited, Events: unlimited,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.ns = newNamespace(t, s.clients.Core)
	class := fixture.Class(s.ns).Provisioner(s.ns)
	for _, change := range edit {
		change(class)
	}
	if _, err := s.clients.Core.StorageV1().StorageClasses().Create(t.Context(), class.Obj(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.events = cluster.NewEvents(t.Context(), s.clients.Events)
	running(t, func(stop, _ context.Context) error {
		_ = s.events.Run(stop) // what is not written when the test is over is of no interest
		return nil
	})
	return s
}

// traffic notes the requests of a site.
type traffic struct {
	mu       sync.Mutex
	requests []request
}

type request struct {
	verb, path string
	code       int
}

func (tr *traffic) over(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if err == nil {
			tr.mu.Lock()
			tr.requests = append(tr.requests, request{verb: r.Method, path: r.URL.Path, code: response.StatusCode})
			tr.mu.Unlock()
		}
		return response, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// count returns how many requests were like that.
func (tr *traffic) count(like func(request) bool) int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	n := 0
	for _, r := range tr.requests {
		if like(r) {
			n++
		}
	}
	return n
}

func onClaims(verb string, code int) func(request) bool {
	return func(r request) bool {
		return r.verb == verb && r.code == code && path.Base(path.Dir(r.path)) == "persistentvolumeclaims"
	}
}

// callTimeout is the deadline of a call to a driver. It is long, since these tests share a machine that may be busy.
const callTimeout = 20 * time.Second

// instance is a running provisioner with its driver.
type instance struct {
	*memdriver.Driver
	node     string
	caches   *cluster.Informers
	registry *prometheus.Registry
	stop     func()
}

// placed is the topology of a node of a site.
func (s *site) placed(node string) map[string]string { return map[string]string{s.ns + "/host": node} }

// name makes the name of a node that belongs to the site.
func (s *site) name(node string) string { return s.ns + "-" + node }

// instanceOn starts the instance of one node. It takes claims within 20 ms, unless edit says otherwise; work that
// fails is tried again as soon.
func (s *site) instanceOn(node string, mem memdriver.Config, edit ...func(*provision.Config)) *instance {
	s.Helper()
	mem.Topology = s.placed(node)
	mem.NodeID = node
	return s.start(node, mem, edit...)
}

func (s *site) start(node string, mem memdriver.Config, edit ...func(*provision.Config)) *instance {
	s.Helper()
	mem.Name = s.ns
	i := &instance{Driver: memdriver.Serve(s.T, mem), node: node, registry: prometheus.NewRegistry()}
	d, err := driver.Connect(s.Context(), driver.Config{Address: i.Socket(), Timeout: callTimeout, Node: node != ""})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(d.Close)
	i.caches = informers(s.T, s.clients, s.ns)
	cfg := provision.Config{
		Client: s.clients.Core, Snapshots: s.clients.Snapshot, Cache: i.caches, Events: i.caches,
		Driver: d, Recorder: s.events.Recorder(cluster.Component(s.ns, node)), OwnRecorder: s.events.Recorder(wellknown.EventComponent),
		Registerer: i.registry,
		Settings: provision.Settings{
			Driver: s.ns, Identity: "1-1-" + s.ns, VolumeNamePrefix: "pvc", VolumeNameUUIDLength: -1,
			Capabilities: provision.Capabilities{ControllerService: true, CreateDeleteVolume: true, Clone: true, Topology: true},
		},
		ImmediateTopology: true,
		CreateWorkers:     10, DeleteWorkers: 10, RetryStart: 20 * time.Millisecond, RetryMax: 200 * time.Millisecond,
		Timeout: callTimeout, Operations: operationsIn(s.ns, s.ns, node, s.clients, true),
	}
	if node != "" {
		cfg.Settings.Identity += "-" + node
		cfg.Node, cfg.Topologies = s.local(d, node)
	} else {
		cfg.Topologies = s.index()
	}
	for _, change := range edit {
		change(&cfg)
	}
	controller, err := provision.New(cfg)
	if err != nil {
		s.Fatal(err)
	}
	stop, cancel := context.WithCancel(s.Context())
	var work sync.WaitGroup
	work.Go(func() {
		if err := controller.Run(stop, context.WithoutCancel(stop)); err != nil {
			s.Error(err)
		}
	})
	i.stop = func() { cancel(); work.Wait() }
	s.Cleanup(i.stop)
	return i
}

// local is what the driver says of its node.
func (s *site) local(d *driver.Driver, node string) (*provision.NodeDeployment, provision.Topologies) {
	s.Helper()
	local := nodelocal.NewLocal(s.ns, node, d.Identity().Node)
	return &provision.NodeDeployment{Local: local, Race: newRace(s.T, 20*time.Millisecond, 60*time.Millisecond), Room: d, ImmediateBinding: true},
		segments.NewFixed(node, local.Topology())
}

// index watches nodes.
func (s *site) index() *segments.Index {
	s.Helper()
	index, err := segments.New(segments.Config{Driver: s.ns, Client: s.clients.Core, Metadata: s.clients.Metadata})
	if err != nil {
		s.Fatal(err)
	}
	running(s.T, func(stop, _ context.Context) error { index.Run(stop); return nil })
	eventually(s.T, "nodes read", index.HasSynced)
	return index
}

func (s *site) claim(name string) *fixture.ClaimBuilder {
	return fixture.Claim(name).Namespace(s.ns).Class(s.ns)
}

func (s *site) create(b *fixture.ClaimBuilder) *corev1.PersistentVolumeClaim {
	s.Helper()
	return createClaim(s.T, s.clients, b.Obj())
}

// live returns a claim as it is now, nil when it is gone.
func (s *site) live(name string) *corev1.PersistentVolumeClaim {
	s.Helper()
	claim, err := s.clients.Core.CoreV1().PersistentVolumeClaims(s.ns).Get(s.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		s.Fatal(err)
	}
	return claim
}

// bound waits until the claim is bound and returns its PersistentVolume.
func (s *site) bound(name string) *corev1.PersistentVolume {
	s.Helper()
	var claim *corev1.PersistentVolumeClaim
	eventually(s.T, "claim "+name+" bound", func() bool {
		claim = s.live(name)
		return claim != nil && claim.Status.Phase == corev1.ClaimBound
	})
	pv := s.pv(claim.Spec.VolumeName)
	if pv == nil {
		s.Fatalf("claim %s is bound to a PersistentVolume that is not there", name)
	}
	return pv
}

// pv returns a PersistentVolume as it is now, nil when it is gone.
func (s *site) pv(name string) *corev1.PersistentVolume {
	s.Helper()
	pv, err := s.clients.Core.CoreV1().PersistentVolumes().Get(s.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		s.Fatal(err)
	}
	return pv
}

func (s *site) remove(name string) {
	s.Helper()
	if err := s.clients.Core.CoreV1().PersistentVolumeClaims(s.ns).Delete(s.Context(), name, metav1.DeleteOptions{}); err != nil {
		s.Fatal(err)
	}
}

// update changes a claim as a user does.
func (s *site) update(name string, change func(*corev1.PersistentVolumeClaim) bool) {
	s.Helper()
	if _, err := cluster.UpdateClaim(s.Context(), s.clients.Core, types.NamespacedName{Namespace: s.ns, Name: name}, "", change); err != nil {
		s.Fatal(err)
	}
}

// told returns the events about an object of that UID, as "reason: message", sorted, with all that was recorded by now.
func (s *site) told(namespace string, uid types.UID) []string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	if err := s.events.Flush(ctx); err != nil {
		s.Fatal(err)
	}
	list, err := s.clients.Core.CoreV1().Events(namespace).List(s.Context(), metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(uid)).String(),
	})
	if err != nil {
		s.Fatal(err)
	}
	var told []string
	for _, event := range list.Items {
		told = append(told, event.Reason+": "+event.Message)
	}
	slices.Sort(told)
	return told
}

// saying waits for an event of that reason whose text has all the words.
func (s *site) saying(namespace string, uid types.UID, reason string, words ...string) {
	s.Helper()
	eventually(s.T, "event "+reason+" with "+strings.Join(words, ", "), func() bool {
		return slices.ContainsFunc(s.told(namespace, uid), func(line string) bool {
			return strings.HasPrefix(line, reason+":") && !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) })
		})
	})
}

// node makes a Node with a CSINode on which the drivers have registered the keys of labels; it goes with the test.
func (s *site) node(name string, labels map[string]string, drivers ...string) {
	s.Helper()
	node := fixture.Node(name, labels)
	if _, err := s.clients.Core.CoreV1().Nodes().Create(s.Context(), node, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	csiNode := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, driver := range drivers {
		csiNode.Spec.Drivers = append(csiNode.Spec.Drivers, fixture.CSINode(name, driver, labels).Spec.Drivers...)
	}
	if _, err := s.clients.Core.StorageV1().CSINodes().Create(s.Context(), csiNode, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { s.dropNode(context.WithoutCancel(s.Context()), name) })
}

func (s *site) dropNode(ctx context.Context, name string) {
	s.Helper()
	for _, err := range []error{
		s.clients.Core.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}),
		s.clients.Core.StorageV1().CSINodes().Delete(ctx, name, metav1.DeleteOptions{}),
	} {
		if err != nil && !apierrors.IsNotFound(err) {
			s.Error(err)
		}
	}
}
