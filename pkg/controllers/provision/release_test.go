package provision

import (
	"errors"
	"testing"
	"time"

	snapclientset "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	snapfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"

	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// withSnapshot gives a world the snapshot "snap", which can be restored from, and returns the client that has it.
func withSnapshot(cfg *Config) *snapfake.Clientset {
	snapshot := fixture.Snapshot("snap").UID("uid-of-snap").Of("origin").Ready("content", "1Gi").Obj()
	client := snapfake.NewSimpleClientset(snapshot, fixture.Content("content").Driver(driverName).For(snapshot).Handle("h").Obj()) //nolint:staticcheck // the module has no other
	cfg.Snapshots = client
	return client
}

// protects reports whether the snapshot has our finalizer.
func protects(t *testing.T, snapshots snapclientset.Interface) bool {
	t.Helper()
	live, err := snapshots.SnapshotV1().VolumeSnapshots("default").Get(t.Context(), "snap", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return has(live.Finalizers, wellknown.FinalizerSnapshotSource)
}

func restore(name string) *fixture.ClaimBuilder {
	return fixture.Claim(name).UID("uid-of-" + name).Class("fast").For(driverName).FromSnapshot("snap")
}

// abroad is a claim of namespace "elsewhere" that names the snapshot.
func abroad() *fixture.ClaimBuilder {
	return fixture.Claim("abroad").Namespace("elsewhere").UID("uid-of-abroad").Class("fast").For(driverName).
		FromAbroad(wellknown.GroupSnapshot, wellknown.KindSnapshot, "default", "snap")
}

// cacheWithGrants has other ReferenceGrants than the cache.
type cacheWithGrants struct {
	Cache
	grants source.Grants
}

func (c cacheWithGrants) Grants(namespace string) ([]*gatewayv1beta1.ReferenceGrant, error) {
	return c.grants(namespace)
}

// A snapshot is let go with the last volume that is made from it, whether or not the claims are bound by then, and at
// the latest when the last claim that could need it is bound or gone.
func TestASnapshotIsLetGo(t *testing.T) {
	t.Parallel()
	slow := answer{after: 10 * time.Second}
	for name, tc := range map[string]struct {
		cross  bool
		grants source.Grants // default: none
		play   func(w *world)
		kept   bool           // after the play
		end    func(w *world) // lets it go
	}{
		"after one volume":                     {play: func(w *world) { w.put(restore("a").Obj()) }},
		"after two whose claims are not bound": {play: func(w *world) { w.put(restore("a").Obj()); w.put(restore("b").Obj()) }},
		"not while another is made": {
			play: func(w *world) {
				w.driver.script = []answer{{}, slow}
				w.put(restore("a").Obj())
				w.put(restore("b").Obj())
			},
			kept: true, end: func(w *world) { w.pass(10 * time.Second) },
		},
		"not while a claim waits for its node, which goes": {
			play: func(w *world) {
				w.put(fixture.Class("late").Provisioner(driverName).WaitForFirstConsumer().Obj())
				w.put(restore("waits").Class("late").Obj())
				w.put(restore("a").Obj())
			},
			kept: true, end: func(w *world) { w.remove(w.live("waits")) },
		},
		"not while another driver's claim waits, which is bound": {
			play: func(w *world) {
				w.put(restore("foreign").For("other").Obj())
				w.put(restore("a").Obj())
			},
			kept: true, end: func(w *world) {
				claim := w.live("foreign")
				claim.Spec.VolumeName = "pv"
				w.put(claim)
			},
		},
		"whatever a claim of another namespace names without a grant": {
			cross: true, play: func(w *world) { w.put(abroad().Obj()); w.put(restore("a").Obj()) },
		},
		"whatever that claim carries": {
			cross: true, play: func(w *world) {
				w.put(abroad().For("other").Finalizer(wellknown.FinalizerProvisioningInProgress).Obj())
				w.put(restore("a").Obj())
			},
		},
		"whatever a claim of another namespace names with the gate off": {
			play: func(w *world) { w.put(abroad().Obj()); w.put(restore("a").Obj()) },
		},
		"not while a claim of another namespace with a grant waits": {
			cross: true, grants: func(namespace string) ([]*gatewayv1beta1.ReferenceGrant, error) {
				return []*gatewayv1beta1.ReferenceGrant{{
					ObjectMeta: metav1.ObjectMeta{Namespace: namespace},
					Spec: gatewayv1beta1.ReferenceGrantSpec{
						From: []gatewayv1beta1.ReferenceGrantFrom{{Kind: wellknown.KindClaim, Namespace: "elsewhere"}},
						To:   []gatewayv1beta1.ReferenceGrantTo{{Group: wellknown.GroupSnapshot, Kind: wellknown.KindSnapshot}},
					},
				}}, nil
			},
			play: func(w *world) { w.put(abroad().For("other").Obj()); w.put(restore("a").Obj()) },
			kept: true, end: func(w *world) { w.remove(abroad().Obj()) },
		},
		"not while grants cannot be read": {
			cross: true, grants: func() source.Grants {
				asked := 0
				return func(string) ([]*gatewayv1beta1.ReferenceGrant, error) {
					if asked++; asked <= 3 { // three seconds with the back-off
						return nil, errors.New("not in sync")
					}
					return nil, nil
				}
			}(),
			play: func(w *world) { w.put(abroad().For("other").Obj()); w.put(restore("a").Obj()) },
			kept: true, end: func(w *world) { w.pass(time.Minute) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			var snapshots snapclientset.Interface
			edit := func(cfg *Config) {
				snapshots = withSnapshot(cfg)
				cfg.Settings.CrossNamespace = tc.cross
				if tc.grants != nil {
					cfg.Cache = cacheWithGrants{cfg.Cache, tc.grants}
				}
			}
			inWorld(t, edit, func(t *testing.T, w *world) {
				tc.play(w)
				w.pass(time.Second)
				if len(w.driver.createCalls()) == 0 {
					t.Fatal("no volume was made")
				}
				if got := protects(t, snapshots); got != tc.kept {
					t.Fatalf("protected: %v, want %v", got, tc.kept)
				}
				if tc.end == nil {
					return
				}
				tc.end(w)
				w.pass(time.Second)
				if protects(t, snapshots) {
					t.Error("protected to the end")
				}
			})
		})
	}
}

// What cannot be written at once is written later.
func TestASnapshotIsLetGoInTheEnd(t *testing.T) {
	var snapshots *snapfake.Clientset
	inWorld(t, func(cfg *Config) { snapshots = withSnapshot(cfg) }, func(t *testing.T, w *world) {
		updates := 0
		snapshots.PrependReactor("update", "volumesnapshots", func(clienttesting.Action) (bool, runtime.Object, error) {
			updates++
			return updates > 1 && updates < 5, nil, apierrors.NewInternalError(errors.New("away")) // the first one protects
		})
		w.put(restore("a").Obj())
		w.pass(time.Minute)
		if protects(t, snapshots) {
			t.Errorf("protected after %d updates", updates)
		}
	})
}

// A claim that cannot succeed holds nothing, and what took the name of a source is not the source.
func TestOnlyAUsedSourceIsProtected(t *testing.T) {
	t.Parallel()
	t.Run("without its secret", func(t *testing.T) {
		var snapshots snapclientset.Interface
		inWorld(t, func(cfg *Config) { snapshots = withSnapshot(cfg) }, func(t *testing.T, w *world) {
			w.put(fixture.Class("secret").Provisioner(driverName).
				Parameter(wellknown.ParamSecretName, "none").Parameter(wellknown.ParamSecretNamespace, "default").Obj())
			w.put(restore("a").Class("secret").Obj())
			w.pass(time.Minute)
			if len(w.events.having("ProvisioningFailed", "none")) == 0 {
				t.Fatal("the missing secret is not told")
			}
			if protects(t, snapshots) {
				t.Error("the snapshot is held")
			}
		})
	})
	t.Run("made anew", func(t *testing.T) {
		var snapshots snapclientset.Interface
		inWorld(t, func(cfg *Config) { snapshots = withSnapshot(cfg) }, func(t *testing.T, w *world) {
			w.put(fixture.Claim("src").UID("new").Obj())
			for _, ref := range []source.Reference{
				{Kind: source.Claim, KindName: wellknown.KindClaim, Namespace: "default", Name: "src"},
				{Kind: source.Snapshot, KindName: wellknown.KindSnapshot, Group: wellknown.GroupSnapshot, Namespace: "default", Name: "snap"},
			} {
				if err := w.c.protectSource(t.Context(), &Plan{Source: ref, SourceUID: types.UID("old")}, nil, false); err == nil {
					t.Errorf("%s of another UID was protected", ref.KindName)
				}
			}
			if protects(t, snapshots) || has(w.live("src").Finalizers, wellknown.FinalizerCloneSource) {
				t.Error("it has the finalizer")
			}
		})
	})
}
