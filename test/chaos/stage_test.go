package chaos

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

// stage is a world whose sidecar reaches the API server through a proxy.
type stage struct {
	*sidecar.World
	proxy      *proxy
	kubeconfig string
	log        string // file of all sidecars
	args       []string
}

func newStage(t *testing.T, c *cluster.Cluster, cfg memdriver.Config, args ...string) *stage {
	t.Helper()
	w := sidecar.NewWorld(t, c, cfg)
	config, err := c.ServiceAccountConfig(t.Context(), w.Namespace, sidecar.AccountName)
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, c.Config())
	s := &stage{World: w, proxy: p, kubeconfig: p.kubeconfig(t, config), args: args}
	s.log = filepath.Join(t.TempDir(), "sidecar.log")
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		kept, err := os.CreateTemp("", "chaos-*.log") //nolint:usetesting // it is meant to outlive the test
		if err != nil {
			t.Errorf("keep the log: %v", err)
			return
		}
		defer func() { _ = kept.Close() }()
		text, err := os.ReadFile(s.log)
		if err == nil {
			_, err = kept.Write(text)
		}
		t.Logf("the log of all sidecars is in %s (%v)", kept.Name(), err)
	})
	return s
}

// start starts a sidecar behind the proxy, with more arguments than those of the stage.
func (s *stage) start(t *testing.T, args ...string) *sidecar.Sidecar {
	t.Helper()
	o := s.Options(append(append([]string{"--timeout=" + callTimeout.String(), "-v=2"}, s.args...), args...)...)
	o.Kubeconfig, o.LogFile = s.kubeconfig, s.log
	return sidecar.Start(t, o)
}

// look reads what there is. Volumes are read last: one that was made meanwhile is found again by who asks twice.
func (s *stage) look(ctx context.Context) (state, error) {
	claims, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return state{}, err
	}
	pvs, err := s.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return state{}, err
	}
	own := slices.DeleteFunc(pvs.Items, func(pv corev1.PersistentVolume) bool {
		return pv.Spec.CSI == nil || pv.Spec.CSI.Driver != s.Driver.Name()
	})
	leases, err := s.Client.CoordinationV1().Leases(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: wellknown.LabelOperationsOf})
	if err != nil {
		return state{}, err
	}
	return state{claims: claims.Items, pvs: own, volumes: s.Driver.Volumes(), leases: leases.Items}, nil
}

// settle waits until everything is at rest after what has happened; what is not by then is reported, with the
// calls that led there.
func (s *stage) settle(t *testing.T, after string, patience time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var left []string
	for {
		now, err := s.look(ctx)
		if err == nil {
			if left = now.unsettled(); len(left) == 0 {
				return
			}
		}
		select {
		case <-ctx.Done():
			for _, complaint := range left {
				t.Error(complaint)
			}
			for _, volume := range now.volumes {
				if slices.ContainsFunc(left, func(complaint string) bool {
					return complaint == "volume "+volume.ID+" ("+volume.Name+") has no PV"
				}) {
					t.Errorf("calls about %s:\n%s", volume.Name, history(s.Driver.Calls(), volume))
				}
			}
			t.Fatalf("after %s: %d things are not settled within %s", after, len(left), patience)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
