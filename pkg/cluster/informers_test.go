package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// running returns synced informers over these objects.
func running(t *testing.T, cfg InformersConfig, objects ...runtime.Object) (*Informers, *fake.Clientset) {
	t.Helper()
	client := fake.NewClientset(objects...)
	cfg.Client, cfg.Driver = client, testDriver
	informers, err := NewInformers(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { informers.Run(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	if err := informers.WaitForSync(ctx); err != nil {
		t.Fatal(err)
	}
	return informers, client
}

func claimFrom(namespace, name string, ref *corev1.TypedObjectReference, provisioner string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: uidOf(namespace, name),
			Annotations: map[string]string{wellknown.AnnStorageProvisioner: provisioner},
		},
		Spec: corev1.PersistentVolumeClaimSpec{DataSourceRef: ref},
	}
}

func TestReadingTheCaches(t *testing.T) {
	t.Parallel()
	there, volume := "there", "pv-1"
	ref := &corev1.TypedObjectReference{Kind: wellknown.KindClaim, Name: "origin", Namespace: &there}
	attachment := func(name, pv string) *storagev1.VolumeAttachment {
		return &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       storagev1.VolumeAttachmentSpec{Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
		}
	}
	inline := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "inline"}}
	informers, _ := running(t, InformersConfig{Attachments: true},
		claimFrom("b", "ours", ref, testDriver), claimFrom("a", "foreign", ref, "other.test"), claimFrom("a", "plain", nil, "other.test"),
		fullPV("other.test"), &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: volume}},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "slow"}}, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}},
		attachment("x", volume), attachment("y", volume), attachment("z", "pv-2"), inline)

	clones := informers.ClaimsBySource(source.ClaimKey("there", "origin"))
	if len(clones) != 2 || clones[0].Name != "foreign" || clones[1].Name != "ours" {
		t.Errorf("clones of the source: %v, want foreign and ours", clones)
	}
	if got := informers.ClaimsBySource(source.ClaimKey("there", "other")); len(got) != 0 {
		t.Errorf("clones of another source: %v", got)
	}
	for name, want := range map[string]bool{"b/ours": true, "a/foreign": true, "a/plain": false} {
		namespace, name, _ := strings.Cut(name, "/")
		if got := informers.ClaimByUID(uidOf(namespace, name)); (got != nil) != want || (want && got.Name != name) {
			t.Errorf("claim %s by UID: %v, want one: %v", name, got, want)
		}
		if got := informers.Claim(namespace, name); got == nil || got.Name != name {
			t.Errorf("claim %s by name: %v", name, got)
		}
	}
	if informers.Claim("a", "nowhere") != nil || informers.PV("nowhere") != nil || informers.Class("nowhere") != nil || informers.ClaimByUID("x") != nil {
		t.Error("what is not there was found")
	}
	if pv := informers.PV("pvc-a1b2"); pv == nil || pv.Spec.ClaimRef.UID != "a1b2" {
		t.Errorf("PersistentVolume of another driver: %v", pv)
	}
	if classes := informers.Classes(); len(classes) != 2 || classes[0].Name != "fast" || informers.Class("slow") == nil {
		t.Errorf("classes: %v", classes)
	}
	if got := informers.AttachmentsOf(volume); len(got) != 2 {
		t.Errorf("attachments: %v, want x and y", got)
	}
}

// PersistentVolumes are found by the handle that the driver knows their volume by: those of all sources and owners.
func TestPVsByHandle(t *testing.T) {
	t.Parallel()
	csi := func(name, driver, handle string) *corev1.PersistentVolume {
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}
		return pv
	}
	disk := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "static-disk"}} // names no driver
	disk.Spec.GCEPersistentDisk = &corev1.GCEPersistentDiskVolumeSource{PDName: "h"}
	others := csi("others", testDriver, "h")
	others.Annotations = map[string]string{wellknown.AnnProvisionedBy: "other.test"}
	objects := []runtime.Object{csi("b", testDriver, "h"), others, csi("foreign", "other.test", "h"), csi("c", testDriver, "other"), disk}
	names := func(i *Informers, handle string) (names []string) {
		for _, pv := range i.PVsByHandle(handle) {
			names = append(names, pv.Name)
		}
		return names
	}
	plain, _ := running(t, InformersConfig{}, objects...)
	if diff := cmp.Diff([]string{"b", "others"}, names(plain, "h")); diff != "" {
		t.Errorf("by default (-want +got):\n%s", diff)
	}
	translating, _ := running(t, InformersConfig{Handle: func(pv *corev1.PersistentVolume) string {
		switch {
		case pv.Spec.GCEPersistentDisk != nil:
			return pv.Spec.GCEPersistentDisk.PDName
		case pv.Spec.CSI != nil && pv.Spec.CSI.Driver == testDriver:
			return pv.Spec.CSI.VolumeHandle
		}
		return ""
	}}, objects...)
	if diff := cmp.Diff([]string{"b", "others", "static-disk"}, names(translating, "h")); diff != "" {
		t.Errorf("with a translation (-want +got):\n%s", diff)
	}
	if got := names(translating, ""); got != nil {
		t.Errorf("without a handle: %v", got)
	}
}

// Attachments are watched only on request; no request is made otherwise.
func TestAttachmentsAreNotWatchedUnasked(t *testing.T) {
	t.Parallel()
	informers, client := running(t, InformersConfig{})
	for _, action := range client.Actions() {
		if action.GetResource().Resource == "volumeattachments" {
			t.Errorf("request %v", action)
		}
	}
	if got := informers.AttachmentsOf("pv"); got != nil {
		t.Errorf("attachments: %v", got)
	}
	if synced, err := informers.OnAttachment(nil); err != nil || !synced() {
		t.Errorf("synced: %v, %v", synced(), err)
	}
}

// Changes reach the handler, those of plain foreign claims do not, and one that becomes ours does.
func TestHandlersSeeWhatMatters(t *testing.T) {
	t.Parallel()
	informers, client := running(t, InformersConfig{}, claimFrom("a", "ours", nil, testDriver), claimFrom("a", "plain", nil, "other.test"))
	seen := make(chan string, 10)
	synced, err := informers.OnClaim(func(before, after *corev1.PersistentVolumeClaim) {
		switch {
		case before == nil:
			seen <- "+" + after.Name
		case after == nil:
			seen <- "-" + before.Name
		default:
			seen <- "~" + after.Name
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := waitFor(t.Context(), synced); err != nil {
		t.Fatal(err)
	}
	claims := client.CoreV1().PersistentVolumeClaims("a")
	plain := claimFrom("a", "plain", nil, "other.test")
	plain.Labels = map[string]string{"x": "y"}
	var errs []error
	update := func(claim *corev1.PersistentVolumeClaim) {
		_, err := claims.Update(t.Context(), claim, metav1.UpdateOptions{})
		errs = append(errs, err)
	}
	update(plain)
	update(claimFrom("a", "plain", nil, testDriver))
	update(claimFrom("a", "plain", nil, "other.test"))
	errs = append(errs, claims.Delete(t.Context(), "plain", metav1.DeleteOptions{}), claims.Delete(t.Context(), "ours", metav1.DeleteOptions{}))
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"+ours", "~plain", "~plain", "-ours"} {
		if got := <-seen; got != want {
			t.Errorf("handler saw %s, want %s", got, want)
		}
	}
}

func waitFor(ctx context.Context, done func() bool) error {
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// A deletion that the watch missed comes in an envelope, of our objects and of others; none makes trouble.
func TestHandlersSurviveTombstones(t *testing.T) {
	t.Parallel()
	c, err := NewCache(CacheConfig{
		Name: "persistentvolumeclaims", Example: &corev1.PersistentVolumeClaim{},
		List: fakeList, Watch: fakeWatch,
	})
	if err != nil {
		t.Fatal(err)
	}
	captured := &capture{SharedIndexInformer: c.SharedIndexInformer}
	c.SharedIndexInformer = captured
	var gone []string
	if _, err := register(c, asClaim, plain, func(before, _ *corev1.PersistentVolumeClaim) { gone = append(gone, before.Name) }); err != nil {
		t.Fatal(err)
	}
	trim := newTrimmer(testDriver, "")
	for _, obj := range []any{
		mustTrim(t, trim.claim, claimFrom("a", "ours", nil, testDriver)),
		mustTrim(t, trim.claim, claimFrom("a", "clone", &corev1.TypedObjectReference{Kind: wellknown.KindClaim, Name: "o"}, "other.test")),
		mustTrim(t, trim.claim, claimFrom("a", "plain", nil, "other.test")),
		nil,
		&corev1.Pod{},
	} {
		captured.handler.OnDelete(cache.DeletedFinalStateUnknown{Key: "a/b", Obj: obj})
	}
	if want := []string{"ours", "clone"}; !slices.Equal(gone, want) {
		t.Errorf("handler saw %v go, want %v", gone, want)
	}
}

type capture struct {
	cache.SharedIndexInformer
	handler cache.ResourceEventHandler
}

func (c *capture) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	c.handler = handler
	return c.SharedIndexInformer.AddEventHandler(handler)
}

// A cache that does not sync is named every 30 seconds, with the reason and the right that is missing.
func TestWaitForSyncSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var tries atomic.Int32
		client.PrependReactor("list", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
			tries.Add(1)
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumes"}, "", errors.New("no rule"))
		})
		informers, err := NewInformers(InformersConfig{Client: client, Driver: testDriver})
		if err != nil {
			t.Fatal(err)
		}
		informers.Require("csinodes.storage.k8s.io", func() bool { return false }, nil)
		ctx, log := logged(t, 0)
		ctx, cancel := context.WithCancelCause(ctx)
		ended := make(chan struct{})
		go func() { informers.Run(ctx); close(ended) }()
		waited := make(chan error)
		go func() { waited <- informers.WaitForSync(ctx) }()
		time.Sleep(95 * time.Second)
		stopped := errors.New("stopped")
		cancel(stopped)
		err = <-waited
		<-ended
		if !errors.Is(err, stopped) || informers.Synced() {
			t.Errorf("error %v, want %v", err, stopped)
		}
		if got := strings.Count(log(), "Caches are not in sync"); got != 3 {
			t.Errorf("reported %d times in 95 s, want 3:\n%s", got, log())
		}
		for _, want := range []string{"persistentvolumes: ", "no rule", "list and watch on persistentvolumes", "csinodes.storage.k8s.io"} {
			if !strings.Contains(log(), want) || !strings.Contains(err.Error(), want) {
				t.Errorf("log or error does not mention %q:\n%s\n%v", want, log(), err)
			}
		}
		if strings.Contains(err.Error(), "storageclasses") {
			t.Errorf("a cache that is in sync is reported: %v", err)
		}
		// The watch is tried more often than that; not each time is logged.
		if got := strings.Count(log(), "Watch fails"); got < 2 || got > 4 || got >= int(tries.Load()) {
			t.Errorf("the failing watch is logged %d times in 95 s and %d tries, want about every 30 s:\n%s", got, tries.Load(), log())
		}
	})
}

func TestNewInformersNeedsADriver(t *testing.T) {
	t.Parallel()
	if _, err := NewInformers(InformersConfig{Client: fake.NewClientset()}); err == nil {
		t.Error("no driver was accepted")
	}
	if _, err := NewInformers(InformersConfig{Driver: testDriver}); err == nil {
		t.Error("no client was accepted")
	}
	if _, err := NewCache(CacheConfig{Name: "x"}); err == nil {
		t.Error("a cache without List was accepted")
	}
}

func TestRefusedNamesTheRightThatIsMissing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		refuse := func(resource string, err error) {
			client.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
		}
		refuse("persistentvolumes", apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumes"}, "", errors.New("no rule")))
		refuse("storageclasses", apierrors.NewInternalError(errors.New("in trouble"))) // that may pass
		informers, err := NewInformers(InformersConfig{Client: client, Driver: testDriver})
		if err != nil {
			t.Fatal(err)
		}
		if err := informers.Refused(); err != nil {
			t.Errorf("before anything was asked: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { informers.Run(ctx); close(ended) }()
		time.Sleep(time.Second)
		err = informers.Refused()
		cancel()
		<-ended
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "list and watch on persistentvolumes") || strings.Contains(err.Error(), "storageclasses") {
			t.Errorf("error %v, want one about persistentvolumes alone", err)
		}
	})
}

// Between two tries a reflector waits ever longer, and does not see that its context has ended.
func TestInformersEndSoonWhileTheAPIServerIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var stopped time.Time
		server := fixture.Away("persistentvolumeclaims", func() { stopped = time.Now(); cancel() })
		client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://away", Transport: server})
		if err != nil {
			t.Fatal(err)
		}
		informers, err := NewInformers(InformersConfig{Client: client, Driver: testDriver})
		if err != nil {
			t.Fatal(err)
		}
		informers.Run(ctx)
		if took := time.Since(stopped); took > time.Second {
			t.Errorf("took %s to stop", took)
		}
		time.Sleep(time.Hour) // until what was left behind has noticed
	})
}
