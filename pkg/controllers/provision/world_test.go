package provision

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	snapfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/operations"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

const driverName = "driver.example.com"

// recorder keeps events as "<type> <reason> <text>".
type recorder struct {
	mu    sync.Mutex
	lines []string
}

func (r *recorder) Event(_ runtime.Object, kind, reason, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, kind+" "+reason+" "+text)
}

func (r *recorder) Eventf(o runtime.Object, kind, reason, format string, args ...any) {
	r.Event(o, kind, reason, fmt.Sprintf(format, args...))
}

func (r *recorder) AnnotatedEventf(o runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	r.Event(o, kind, reason, fmt.Sprintf(format, args...))
}

// having returns the events that contain all the words.
func (r *recorder) having(words ...string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []string
	for _, line := range r.lines {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
			found = append(found, line)
		}
	}
	return found
}

// world is an API server, a driver and the process between them, in a bubble where time is ours.
type world struct {
	*testing.T
	api    *apiServer
	driver *scripted
	events *recorder
	cfg    Config
	c      *Controller // the running instance
	dead   *atomic.Bool
	logger klog.Logger
	stop   func()
	kill   context.CancelFunc
	ended  chan error
	// started counts the instances.
	started int
}

// leaseNamespace is the namespace of the driver.
const leaseNamespace = "driver"

// inWorld runs test in a world with one class, "fast", and a running instance.
func inWorld(t *testing.T, edit func(*Config), test func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, api: newAPIServer(), events: &recorder{}}
		w.driver = &scripted{begin: time.Now(), volumes: map[string]bool{}}
		w.cfg = Config{
			Snapshots: &snapfake.Clientset{}, Cache: w.api, Events: w.api, Driver: w.driver,
			Recorder: w.events, OwnRecorder: w.events,
			Settings:      Settings{Driver: driverName, VolumeNamePrefix: "pvc", VolumeNameUUIDLength: -1, Capabilities: allCapabilities()},
			CreateWorkers: 2, DeleteWorkers: 2, RetryStart: time.Second, RetryMax: 5 * time.Minute, Timeout: 10 * time.Second,
			Operations: &operations.Config{LeaseName: "driver-example-com", Driver: driverName, Exclusive: true},
		}
		if edit != nil {
			edit(&w.cfg)
		}
		w.api.handle = HandleOf(w.cfg.Settings.Driver, w.cfg.Translator)
		w.put(fixture.Class("fast").UID("class-1").Provisioner(driverName).Obj())
		w.start()
		t.Cleanup(w.end)
		test(t, w)
		w.end()
	})
}

func allCapabilities() Capabilities {
	return Capabilities{ControllerService: true, CreateDeleteVolume: true, Snapshot: true, Clone: true, Modify: true, PublishUnpublish: true, SingleNodeMultiWriter: true}
}

// start begins the life of an instance, which remembers nothing.
func (w *world) start() {
	w.Helper()
	cfg, dead := w.cfg, &atomic.Bool{}
	cfg.Client = w.api.client(dead.Load)
	cfg.Registerer = prometheus.NewRegistry()
	if cfg.Operations != nil {
		w.started++
		ops := *cfg.Operations
		ops.Leases = cfg.Client.CoordinationV1().Leases(leaseNamespace)
		ops.Rights = cluster.NewNamespacedAccess(cfg.Client, coordinationv1.Resource("leases"), leaseNamespace)
		ops.Identity = fmt.Sprintf("process-%d", w.started)
		cfg.Operations = &ops
	}
	c, err := New(cfg)
	if err != nil {
		w.Fatal(err)
	}
	w.logger = ktesting.NewLogger(w, ktesting.NewConfig(ktesting.Verbosity(4), ktesting.BufferLogs(true)))
	logging := klog.NewContext(context.Background(), w.logger)
	stop, stopping := context.WithCancel(logging)
	work, killing := context.WithCancel(logging)
	w.c, w.dead, w.stop, w.kill, w.ended = c, dead, stopping, killing, make(chan error, 1)
	go func(ended chan<- error) { ended <- c.Run(stop, work) }(w.ended)
	synctest.Wait() // what is there has been seen
}

// inLog reports whether the instance has logged a line that contains all the words.
func (w *world) inLog(words ...string) bool { return w.linesInLog(words...) > 0 }

// linesInLog returns how many lines with all the words the instance has logged.
func (w *world) linesInLog(words ...string) (n int) {
	w.Helper()
	underlier, ok := w.logger.GetSink().(ktesting.Underlier)
	if !ok {
		w.Fatal("the log cannot be read")
	}
	for line := range strings.SplitSeq(underlier.GetBuffer().String(), "\n") {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
			n++
		}
	}
	return n
}

// die ends the instance as SIGKILL does: from here on it reaches nobody.
func (w *world) die() {
	w.dead.Store(true)
	w.api.detach()
	w.end()
}

// end ends the instance at once.
func (w *world) end() {
	w.Helper()
	w.stop()
	w.kill()
	if err := <-w.ended; err != nil {
		w.Error(err)
	}
	w.ended <- nil // end may be called again
	w.api.detach()
}

// term ends the instance as SIGTERM does, with so much time to drain, and returns how long it took.
func (w *world) term(drain time.Duration) time.Duration {
	w.Helper()
	begin := time.Now()
	w.stop()
	timer := time.AfterFunc(drain, w.kill)
	defer timer.Stop()
	if err := <-w.ended; err != nil {
		w.Error(err)
	}
	w.ended <- nil
	w.api.detach()
	return time.Since(begin)
}

// pass lets d pass.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) put(object metav1.Object) {
	w.Helper()
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	key := keyOf(object)
	var err error
	if w.api.objects[key] == nil {
		_, err = w.api.create(key, clone(object))
	} else {
		object = clone(object)
		object.SetResourceVersion("")
		_, err = w.api.update(key, object)
	}
	if err != nil {
		w.Fatal(err)
	}
}

func keyOf(object metav1.Object) string {
	resource := map[string]string{
		"*v1.PersistentVolumeClaim": "persistentvolumeclaims", "*v1.PersistentVolume": "persistentvolumes", "*v1.StorageClass": "storageclasses",
		"*v1.Secret": "secrets", "*v1.VolumeAttributesClass": "volumeattributesclasses", "*v1.VolumeAttachment": "volumeattachments",
		"*v1.Lease": "leases",
	}[fmt.Sprintf("%T", object)]
	return resource + "/" + object.GetNamespace() + "/" + object.GetName()
}

// claim creates a claim of class "fast" and returns it.
func (w *world) claim(name string) *corev1.PersistentVolumeClaim {
	w.Helper()
	w.put(fixture.Claim(name).UID("uid-of-" + name).Class("fast").For(driverName).Finalizer("kubernetes.io/pvc-protection").Obj())
	return w.live(name)
}

// live returns the claim as the API server has it, nil if it does not.
func (w *world) live(name string) *corev1.PersistentVolumeClaim {
	w.Helper()
	return liveAs[*corev1.PersistentVolumeClaim](w, "persistentvolumeclaims/default/"+name)
}

func (w *world) pv(name string) *corev1.PersistentVolume {
	w.Helper()
	return liveAs[*corev1.PersistentVolume](w, "persistentvolumes//"+name)
}

func liveAs[T metav1.Object](w *world, key string) T {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	var none T
	object, err := w.api.get(key)
	if apierrors.IsNotFound(err) {
		return none
	}
	found, ok := object.(T)
	if !ok {
		w.Fatalf("%s is a %T", key, object)
	}
	return found
}

// change edits the claim as a user does.
func (w *world) change(name string, edit func(*corev1.PersistentVolumeClaim)) {
	w.Helper()
	claim := w.live(name)
	edit(claim)
	w.put(claim)
}

// remove asks for the deletion of an object; a claim loses Kubernetes' own finalizer at once.
func (w *world) remove(object metav1.Object) {
	w.Helper()
	w.api.mu.Lock()
	err := w.api.delete(keyOf(object), nil)
	w.api.mu.Unlock()
	if err != nil {
		w.Fatal(err)
	}
	if claim, ok := object.(*corev1.PersistentVolumeClaim); ok && w.live(claim.Name) != nil {
		w.change(claim.Name, func(claim *corev1.PersistentVolumeClaim) {
			claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == "kubernetes.io/pvc-protection" })
		})
	}
}

// terminate asks for the deletion of a claim, and changes nothing else: there is one event.
func (w *world) terminate(name string) {
	w.Helper()
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	if err := w.api.delete("persistentvolumeclaims/default/"+name, nil); err != nil {
		w.Fatal(err)
	}
}

// recorded reports whether a Lease says the operation of the claim with that name. One that has ended for a process that
// lives does not count, although the Lease says it for a second more.
func (w *world) recorded(name string) bool {
	w.Helper()
	if lease := w.leaseOf(name); lease == nil || len(w.ended) > 0 {
		return lease != nil
	}
	cr, ok := w.c.creates.get(types.UID("uid-of-" + name))
	return ok && cr.recorded
}

// leaseOf returns the Lease that says the operation of the claim with that name, nil for none.
func (w *world) leaseOf(name string) *coordinationv1.Lease {
	w.Helper()
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	for _, object := range w.api.objects {
		lease, ok := object.(*coordinationv1.Lease)
		if !ok || lease.Annotations[wellknown.AnnOperation] == "" {
			continue
		}
		op, err := operations.Decode(lease.Annotations[wellknown.AnnOperation], lease.UID)
		if err != nil {
			w.Fatal(err)
		}
		if op.Claim.UID == types.UID("uid-of-"+name) {
			return lease.DeepCopy()
		}
	}
	return nil
}

// bind does what Kubernetes does when the PersistentVolume is there.
func (w *world) bind(name string) {
	w.Helper()
	pvName := "pvc-uid-of-" + name
	w.change(name, func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.VolumeName = pvName
		claim.Status.Phase = corev1.ClaimBound
	})
	w.phase(pvName, corev1.VolumeBound)
}

func (w *world) phase(pvName string, phase corev1.PersistentVolumePhase) {
	w.Helper()
	pv := w.pv(pvName)
	pv.Status.Phase = phase
	w.put(pv)
}

// counted returns the value of a counter.
func counted(t *testing.T, c prometheus.Collector) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) == 0 {
		return 0
	}
	return families[0].GetMetric()[0].GetCounter().GetValue()
}
