package provision

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// silent is an API server, or a watch of nodes, that does not answer before the question is given up.
type silent struct {
	kubernetes.Interface
	corev1client.CoreV1Interface
	corev1client.SecretInterface

	asked atomic.Int32
}

func (s *silent) wait(ctx context.Context) error {
	s.asked.Add(1)
	<-ctx.Done()
	return context.Cause(ctx)
}

func (s *silent) CoreV1() corev1client.CoreV1Interface { return s }

func (s *silent) Secrets(string) corev1client.SecretInterface { return s }

func (s *silent) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*corev1.Secret, error) {
	return nil, s.wait(ctx)
}

func (s *silent) Require(ctx context.Context, _ topology.Request) (*csi.TopologyRequirement, error) {
	return nil, s.wait(ctx)
}

// A stop waits for no answer that an attempt needs before its call, and such an attempt has no event about it.
func TestAStopWaitsForNoRead(t *testing.T) {
	t.Parallel()
	for name, setUp := range map[string]func(w *world, s *silent){
		"of the topology": func(w *world, s *silent) { w.c.cfg.Topologies = s },
		"of a secret": func(w *world, s *silent) {
			s.Interface, s.CoreV1Interface = w.c.cfg.Client, w.c.cfg.Client.CoreV1()
			w.c.cfg.Client = s
			withSecret(w)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				s := &silent{}
				setUp(w, s)
				w.claim("c")
				w.pass(time.Second)
				if s.asked.Load() != 1 {
					t.Fatalf("asked %d times", s.asked.Load())
				}
				if took := w.term(30 * time.Second); took > 500*time.Millisecond {
					t.Errorf("the stop took %s", took)
				}
				w.calls()
				if failed := w.events.having("Warning"); len(failed) != 0 {
					t.Errorf("events %v", failed)
				}
			})
		})
	}
}

// withSecret lets the claims of class fast need a secret.
func withSecret(w *world) {
	w.put(fixture.Class("fast").UID("class-1").Provisioner(driverName).
		Parameter("csi.storage.k8s.io/provisioner-secret-name", "s").Parameter("csi.storage.k8s.io/provisioner-secret-namespace", "default").Obj())
}
