package nodecleanup

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// scene is a cluster in a bubble where time is ours, with a controller.
type scene struct {
	*testing.T
	client   *fake.Clientset
	recorder *record.FakeRecorder
	c        *Controller

	onClaim cluster.Handler[*corev1.PersistentVolumeClaim]
	onPV    cluster.Handler[*corev1.PersistentVolume]

	mu        sync.Mutex
	attached  []*storagev1.VolumeAttachment // guarded by mu
	reactions []reaction                    // the latest first; guarded by mu
}

// reaction answers some requests in place of the API server.
type reaction struct {
	verb, resource string // "*" for any
	do             clienttesting.ReactionFunc
}

// react puts a reaction before the others. A fake's own may not be changed while it is used.
func (s *scene) react(verb, resource string, do clienttesting.ReactionFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reactions = append([]reaction{{verb, resource, do}}, s.reactions...)
}

func (s *scene) reactTo(action clienttesting.Action) (bool, runtime.Object, error) {
	s.mu.Lock()
	reactions := s.reactions
	s.mu.Unlock()
	for _, r := range reactions {
		if (r.verb == "*" || r.verb == action.GetVerb()) && (r.resource == "*" || r.resource == action.GetResource().Resource) {
			if handled, object, err := r.do(action); handled {
				return true, object, err
			}
		}
	}
	return false, nil, nil
}

func (s *scene) OnClaim(h cluster.Handler[*corev1.PersistentVolumeClaim]) (func() bool, error) {
	s.onClaim = h
	return func() bool { return true }, nil
}

func (s *scene) OnPV(h cluster.Handler[*corev1.PersistentVolume]) (func() bool, error) {
	s.onPV = h
	return func() bool { return true }, nil
}

func (s *scene) AttachmentsOf(string) []*storagev1.VolumeAttachment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attached
}

// inScene runs test with a controller that works, in a cluster of these objects.
func inScene(t *testing.T, test func(s *scene), objects ...runtime.Object) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{T: t, client: fake.NewClientset(objects...), recorder: record.NewFakeRecorder(1000)}
		s.client.PrependReactor("*", "*", s.reactTo)
		var err error
		s.c, err = New(Config{Cache: s, Client: s.client, Recorder: s.recorder, Driver: testDriver})
		if err != nil {
			t.Fatal(err)
		}
		end := s.run()
		for _, object := range objects {
			switch object := object.(type) {
			case *corev1.PersistentVolumeClaim:
				s.onClaim(nil, object)
			case *corev1.PersistentVolume:
				s.onPV(nil, object)
			}
		}
		test(s)
		end()
	})
}

// run begins a term, and returns the function that ends it.
func (s *scene) run() (end func()) {
	stop, cancel := context.WithCancel(s.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.c.Run(stop, s.Context()) }()
	synctest.Wait()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			s.Error(err)
		}
	}
}

func (s *scene) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// count returns how many requests were of one of these kinds: verb and resource.
func (s *scene) count(kinds ...string) int {
	n := 0
	for _, action := range s.client.Actions() {
		if slices.Contains(kinds, action.GetVerb()+" "+action.GetResource().Resource) {
			n++
		}
	}
	return n
}

// fails makes requests fail until the returned function is called.
func (s *scene) fails(verb, resource string, err error) (heal func()) {
	var healed atomic.Bool
	s.react(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) { return !healed.Load(), nil, err })
	return func() { healed.Store(true) }
}

func (s *scene) selected(name string) string {
	s.Helper()
	claim, err := s.client.CoreV1().PersistentVolumeClaims("default").Get(s.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return claim.Annotations[wellknown.AnnSelectedNode]
}

func (s *scene) hasPV(name string) bool {
	s.Helper()
	_, err := s.client.CoreV1().PersistentVolumes().Get(s.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		s.Fatal(err)
	}
	return err == nil
}

func waiting(n int, node string) *corev1.PersistentVolumeClaim {
	return fixture.Claim(fmt.Sprintf("c-%03d", n)).UID(fmt.Sprintf("u-%d", n)).For(testDriver).SelectedNode(node).Obj()
}

func leftover(n int, host string) *corev1.PersistentVolume {
	pv := fixture.PV(fmt.Sprintf("pv-%03d", n)).UID(fmt.Sprintf("p-%d", n)).ProvisionedBy(testDriver).Phase(corev1.VolumeReleased).Obj()
	pv.Spec.NodeAffinity = affinity(in("host", host))
	return pv
}

// told returns the next event, "" when there is none.
func (s *scene) told() string {
	select {
	case event := <-s.recorder.Events:
		return event
	default:
		return ""
	}
}
