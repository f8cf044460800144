package integration

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/controllers/provision"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// P14, P15: a request below the size of its source is an error that names both sizes, or grows to it with the flag.
func TestARequestSmallerThanItsSource(t *testing.T) {
	t.Parallel()
	for name, grow := range map[string]bool{"is refused": false, "grows": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := sourceGround(t, memdriver.Config{RoundTo: 1 << 30})
			g.begin(func(cfg *provision.Config) { cfg.Settings.GrowToSourceSize = grow })
			g.create(g.ours("src").Size("100Mi"))
			g.bound("src")
			g.snapshot("snap", "src", "1Gi")
			restored := g.create(g.ours("restored").Size("100Mi").FromSnapshot("snap"))
			g.create(g.ours("clone").Size("100Mi").FromClaim("src"))
			if grow {
				for _, name := range []string{"restored", "clone"} {
					if size := g.bound(name).Spec.Capacity[corev1.ResourceStorage]; size.Value() != 1<<30 {
						t.Errorf("%s has %s", name, size.String())
					}
				}
				for _, call := range g.driver.Calls("CreateVolume")[1:] {
					if got := call.Create().GetCapacityRange().GetRequiredBytes(); got != 1<<30 {
						t.Errorf("asked for %d bytes", got)
					}
				}
			} else {
				g.saying(g.ns, restored.UID, "ProvisioningFailed", "104857600", "1073741824", "snap")
				g.bound("clone") // its source asked for no more
			}
			for _, name := range []string{"restored", "clone", "src"} {
				g.remove(name)
			}
			g.clean()
		})
	}
}

// P26, R32: what a populator fills gets one event of us and nothing else, also when its kind is called like one of ours.
func TestClaimsOfPopulators(t *testing.T) {
	t.Parallel()
	g := sourceGround(t, memdriver.Config{})
	l := g.begin(func(cfg *provision.Config) { cfg.Operations, cfg.Cache = nil, caughtUp{cfg.Cache} })
	for name, claim := range map[string]*corev1.PersistentVolumeClaim{
		"recipe":  g.create(g.ours("recipe").From("example.com", "Recipe", "r")),
		"foreign": g.create(g.ours("foreign").From("example.com", wellknown.KindClaim, "c")),
	} {
		g.saying(g.ns, claim.UID, "Provisioning", "Assuming an external populator will provision the volume")
		g.update(name, func(claim *corev1.PersistentVolumeClaim) bool { claim.Annotations["a"] = "b"; return true })
	}
	// A claim that comes later is served, so the others have had their turn.
	g.create(g.ours("plain"))
	g.bound("plain")
	for _, name := range []string{"recipe", "foreign"} {
		told := slices.DeleteFunc(g.told(g.ns, g.live(name).UID), func(line string) bool { return strings.HasPrefix(line, "ExternalProvisioning") })
		if len(told) != 1 {
			t.Errorf("%s was told %v", name, told)
		}
		if len(g.live(name).Finalizers) != 1 {
			t.Errorf("%s has finalizers %v", name, g.live(name).Finalizers)
		}
		g.remove(name)
	}
	if got := g.creates(); got != 1 {
		t.Errorf("%d CreateVolume calls, want 1", got)
	}
	if got := l.requests.count(onClaims(http.MethodPut, http.StatusOK)); got != 0 {
		t.Errorf("%d writes of claims", got)
	}
	g.remove("plain")
	g.clean()
}

// R23: each thing is read once an attempt.
func TestSourcesAreReadOnce(t *testing.T) {
	t.Parallel()
	g := sourceGround(t, memdriver.Config{}, func(class *fixture.ClassBuilder) {
		class.Parameter("csi.storage.k8s.io/provisioner-secret-name", "s").Parameter("csi.storage.k8s.io/provisioner-secret-namespace", "${pvc.namespace}")
	})
	if _, err := g.clients.Core.CoreV1().Secrets(g.ns).Create(t.Context(), fixture.Secret(g.ns, "s", map[string]string{"key": "value"}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	vac := &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: g.ns}, DriverName: g.ns, Parameters: map[string]string{"iops": "1"}}
	if _, err := g.clients.Core.StorageV1().VolumeAttributesClasses().Create(t.Context(), vac, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	setUp := g.begin()
	g.origin("src")
	g.snapshot("snap", "src", "1Gi")
	setUp.kill()
	g.create(g.ours("restored").FromSnapshot("snap").AttributesClass(g.ns))
	release := g.blocked(1)
	l := g.begin(func(cfg *provision.Config) { cfg.Operations, cfg.Cache = nil, caughtUp{cfg.Cache} })
	g.started("CreateVolume", 2)
	for resource, most := range map[string]int{
		"/volumesnapshots/snap": 1, "/volumesnapshotcontents/" + g.ns: 1, "/secrets/s": 1, "/volumeattributesclasses/": 1, "/persistentvolumeclaims/restored": 0, "/persistentvolumes/": 0,
	} {
		got := l.requests.count(func(r request) bool { return r.verb == http.MethodGet && strings.Contains(r.path, resource) })
		if got > most {
			t.Errorf("%d GETs of %s, want at most %d", got, resource, most)
		}
	}
	release()
	g.bound("restored")
}

// caughtUp is a cache that is known to show nothing from before the process began its work.
type caughtUp struct{ provision.Cache }

func (caughtUp) CaughtUp(cluster.Resource) bool { return true }
