package provision

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// disks translates PersistentVolumes with a GCE disk to volumes of the driver, with the disk's name as the handle, and
// not one that is called "odd".
type disks struct{ bothWays }

func (disks) IsMigratable(pv *corev1.PersistentVolume) bool { return pv.Spec.GCEPersistentDisk != nil }

func (disks) TranslateToCSI(pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	if pv.Spec.GCEPersistentDisk.PDName == "odd" {
		return nil, errors.New("odd name")
	}
	asCSI := pv.DeepCopy()
	asCSI.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: pv.Spec.GCEPersistentDisk.PDName}}
	return asCSI, nil
}

func onDisk(b *fixture.PVBuilder, disk string) *corev1.PersistentVolume {
	pv := b.Obj()
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: disk}}
	return pv
}

func TestHandleOf(t *testing.T) {
	t.Parallel()
	ours := fixture.PV("pv").Driver(driverName).Handle("h").Obj()
	for name, tc := range map[string]struct {
		translator Translator
		pv         *corev1.PersistentVolume
		want       string
	}{
		"ours":                               {nil, ours, "h"},
		"ours, with a translator":            {disks{}, ours, "h"},
		"another driver's":                   {disks{}, fixture.PV("pv").Driver("other").Handle("h").Obj(), ""},
		"in-tree, ours":                      {disks{}, onDisk(fixture.PV("pv"), "disk"), "disk"},
		"in-tree, without a translator":      {nil, onDisk(fixture.PV("pv"), "disk"), ""},
		"in-tree, that cannot be translated": {disks{}, onDisk(fixture.PV("pv"), "odd"), ""},
		"in-tree, another driver's":          {elsewhere{}, onDisk(fixture.PV("pv"), "disk"), ""},
	} {
		if got := HandleOf(driverName, tc.translator)(tc.pv); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

// unseen puts an object that the cache does not show.
func (w *world) unseen(object *corev1.PersistentVolume) {
	w.Helper()
	w.put(object)
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	delete(w.api.cached, keyOf(object))
}

// The volume of an answer that cannot be used is deleted only if no PersistentVolume has it, whatever the cache shows. One
// that has it ends the create; a look that fails does not.
func TestACleanUpSparesVolumesInUse(t *testing.T) {
	const handle = "id-of-pvc-uid-of-c"
	other := fixture.PV("static").UID("static").Driver(driverName).Handle(handle).Phase(corev1.VolumeBound).Obj()
	t.Parallel()
	for name, tc := range map[string]struct {
		prepare func(w *world)
		inUse   bool
		deletes int
	}{
		"nobody has it":                       {func(*world) {}, false, 1},
		"another volume is there":             {func(w *world) { w.put(fixture.PV("static").Driver(driverName).Handle("h").Obj()) }, false, 1},
		"another driver has the handle":       {func(w *world) { w.put(fixture.PV("static").Driver("other").Handle(handle).Obj()) }, false, 1},
		"a static PersistentVolume":           {func(w *world) { w.put(other) }, true, 0},
		"a static one that is not cached yet": {func(w *world) { w.unseen(other) }, true, 0},
		"an in-tree one":                      {func(w *world) { w.put(onDisk(fixture.PV("static"), handle)) }, true, 0},
		"an in-tree one that is not cached":   {func(w *world) { w.unseen(onDisk(fixture.PV("static"), handle)) }, true, 0},
		"the claim's own, which is not cached": {func(w *world) {
			w.unseen(fixture.PV("old-name").Driver(driverName).Handle(handle).BoundTo(w.live("c")).Obj())
		}, true, 0},
		"another claim's, which is not saved yet": {func(w *world) {
			w.c.creates.put(create{claim: fixture.Claim("d").UID("d").Obj(), unsaved: fixture.PV("pvc-d").Obj(), volumeID: handle})
		}, true, 0},
		"the look fails": {func(w *world) {
			w.api.failing(func(verb, resource, _ string) error {
				if verb == "list" && resource == "persistentvolumes" {
					return errors.New("no connection")
				}
				return nil
			})
		}, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(cfg *Config) { cfg.Settings.InTree, cfg.Translator = inTreeName, disks{} }, func(t *testing.T, w *world) {
				w.driver.answers(answer{after: 30 * time.Millisecond, edit: func(v *csi.Volume) { v.CapacityBytes = 1 }}, endless)
				w.claim("c")
				w.pass(10 * time.Millisecond)
				tc.prepare(w)
				w.pass(500 * time.Millisecond)
				if n := len(w.driver.deleteCalls()); n != tc.deletes {
					t.Errorf("%d DeleteVolume calls, want %d", n, tc.deletes)
				}
				if told := len(w.events.having("Warning ProvisioningFailed", "less than requested", "in use", handle)); (told == 1) != tc.inUse {
					t.Errorf("events: %v", w.events.having())
				}
				cr, _ := w.c.creates.get("uid-of-c")
				if failed := strings.HasPrefix(name, "the look fails"); cr.proto.unanswered != failed || w.recorded("c") != failed {
					t.Errorf("unanswered %v, recorded %v", cr.proto.unanswered, w.recorded("c"))
				}
			})
		})
	}
}

// All pages are looked through for the handle.
func TestALookThroughAllPages(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		var asked []string
		w.intercept("list", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			options := action.(clienttesting.ListActionImpl).GetListOptions() //nolint:errcheck,forcetypeassert // the fake makes no other
			asked = append(asked, options.Continue)
			page := &corev1.PersistentVolumeList{}
			switch options.Continue {
			case "":
				page.Continue = "second"
			case "second":
				page.Items = []corev1.PersistentVolume{*fixture.PV("static").Driver(driverName).Handle("h").Obj()}
			}
			return true, page, nil
		})
		for handle, inUse := range map[string]bool{"h": true, "another": false} {
			asked = nil
			if err := w.c.checkUnused(t.Context(), handle, ""); errors.Is(err, errVolumeInUse) != inUse || (err != nil) != inUse {
				t.Errorf("%s: %v", handle, err)
			}
			if !slices.Equal(asked, []string{"", "second"}) {
				t.Errorf("%s: asked for the pages %q", handle, asked)
			}
		}
	})
}

// Things change while the secret for a deletion is read, which may wait long for the client's rate limit. DeleteVolume
// is called only if the volume is still to be deleted then.
func TestADeletionIsConfirmed(t *testing.T) {
	live := func(change func(pv *corev1.PersistentVolume)) func(w *world) {
		return func(w *world) {
			w.api.lag(true) // the cache does not show it
			w.api.mu.Lock()
			defer w.api.mu.Unlock()
			w.api.edit("persistentvolumes//pv", change)
		}
	}
	static := func() *fixture.PVBuilder {
		return fixture.PV("static").UID("static").Driver(driverName).Handle("handle-pv").Phase(corev1.VolumeBound)
	}
	t.Parallel()
	for name, tc := range map[string]struct {
		change  func(w *world)
		denied  bool // the right to get PersistentVolumes
		deleted bool
		event   string // Warning, "" for none
	}{
		"nothing changes": {change: func(*world) {}, deleted: true},
		"nothing changes, without the right to get": {change: func(*world) {}, denied: true, deleted: true},
		"the cache shows that the volume is to be kept": {change: func(w *world) {
			pv := w.pv("pv")
			pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
			w.put(pv)
		}},
		"the policy": {change: live(func(pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		})},
		"the policy, without the right to get": {change: live(func(pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}), denied: true},
		"the phase":  {change: live(func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeAvailable })},
		"the UID":    {change: live(func(pv *corev1.PersistentVolume) { pv.UID = "another" })},
		"the driver": {change: live(func(pv *corev1.PersistentVolume) { pv.Spec.CSI.Driver = "other" })},
		"the finalizer": {change: live(func(pv *corev1.PersistentVolume) {
			now := pv.CreationTimestamp
			pv.DeletionTimestamp, pv.Finalizers = &now, []string{"other"}
		})},
		"it is gone": {change: live(func(pv *corev1.PersistentVolume) {
			now := pv.CreationTimestamp
			pv.DeletionTimestamp, pv.Finalizers = &now, nil
		})},
		"it is gone, without the right to get": {change: live(func(pv *corev1.PersistentVolume) {
			now := pv.CreationTimestamp
			pv.DeletionTimestamp, pv.Finalizers = &now, nil
		}), denied: true},
		"it is attached": {change: func(w *world) { w.put(fixture.Attachment("va", driverName, "pv", "node-1")) }},
		"another PersistentVolume has the volume": {
			change: func(w *world) { w.put(static().Obj()) }, event: `"handle-pv" is also the volume of PersistentVolume static`,
		},
		"another one is deleted with it": {
			change: func(w *world) { w.put(static().Phase(corev1.VolumeReleased).Obj()) }, deleted: true,
		},
		"another claim's volume is not saved yet": {
			change: func(w *world) {
				w.c.creates.put(create{claim: fixture.Claim("d").UID("d").Obj(), unsaved: fixture.PV("pvc-d").Obj(), volumeID: "handle-pv"})
			}, event: "PersistentVolume pvc-d",
		},
		"the look fails": {change: func(w *world) {
			w.api.failing(func(verb, resource, _ string) error {
				if verb == "get" && resource == "persistentvolumes" {
					return errors.New("no connection")
				}
				return nil
			})
		}, event: "no connection"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				if tc.denied {
					w.api.deny("get")
				}
				secret := fixture.Secret("default", "s", nil)
				secret.Data = map[string][]byte{"key": []byte("value")}
				w.put(secret)
				changed := false
				w.intercept("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
					if !changed {
						changed = true
						tc.change(w)
					}
					return false, nil, nil
				})
				w.put(released().DeletionSecret("default", "s").Obj())
				w.pass(500 * time.Millisecond)
				if !changed {
					t.Fatal("the secret was not read")
				}
				deleted := slices.ContainsFunc(w.driver.deleteCalls(), func(m moment) bool { return m.id == "handle-pv" && slices.Equal(m.keys, []string{"key"}) })
				if deleted != tc.deleted {
					t.Errorf("deleted: %v, want %v", deleted, tc.deleted)
				}
				warnings := w.events.having("Warning VolumeFailedDelete")
				if (len(warnings) != 0) != (tc.event != "") || (tc.event != "" && !strings.Contains(warnings[0], tc.event)) {
					t.Errorf("warnings %v, want one with %q", warnings, tc.event)
				}
			})
		})
	}
}

// The cache is asked first: what it shows needs no request.
func TestALookAtTheCacheIsEnough(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.put(fixture.PV("static").Driver(driverName).Handle("h").Obj())
		w.api.failing(func(string, string, string) error { return errors.New("no connection") })
		if err := w.c.checkUnused(t.Context(), "h", ""); !errors.Is(err, errVolumeInUse) {
			t.Errorf("error %v", err)
		}
	})
}

// A deletion without a secret is confirmed by the cache: it makes no request but those that change the object.
func TestADeletionWithoutASecretReadsNothing(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		read := 0
		w.intercept("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			read++
			return false, nil, nil
		})
		w.put(released().Obj())
		w.pass(time.Second)
		w.deletes(1, false)
		if read != 0 {
			t.Errorf("%d reads", read)
		}
	})
}

// An attachment that comes while the PersistentVolume is read for the last time keeps the volume.
func TestAnAttachmentDuringTheLastLook(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		attached := false
		w.intercept("get", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
			if !attached {
				attached = true
				w.put(fixture.Attachment("va", driverName, "pv", "node-1"))
			}
			return false, nil, nil
		})
		w.put(fixture.Secret("default", "s", nil))
		w.put(released().DeletionSecret("default", "s").Obj())
		w.pass(time.Second)
		w.deletes(0, true)
		if len(w.events.having("Normal VolumeDelete", "node-1")) != 1 {
			t.Errorf("events: %v", w.events.having())
		}
	})
}

// A PersistentVolume that cannot be saved is given up, but not its volume if another PersistentVolume has that.
func TestAnAbandonedVolumeInUseIsSpared(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.api.failing(func(verb, resource, name string) error {
			if verb == "create" && resource == "persistentvolumes" {
				return apierrors.NewInvalid(schema.GroupKind{Kind: "PersistentVolume"}, name, nil)
			}
			return nil
		})
		claim := w.claim("c")
		w.pass(time.Minute)
		w.unseen(fixture.PV("static").UID("static").Driver(driverName).Handle("id-of-pvc-uid-of-c").Annotation(wellknown.AnnProvisionedBy, "by-hand").Obj())
		w.remove(claim)
		w.pass(time.Hour)
		if n := len(w.driver.deleteCalls()); n != 0 || w.live("c") != nil {
			t.Errorf("%d DeleteVolume calls, claim %v", n, w.live("c"))
		}
		if n := len(w.c.creates.where(func(create) bool { return true })); n != 0 {
			t.Errorf("%d creates are remembered", n)
		}
		w.calls(0)
	})
}
