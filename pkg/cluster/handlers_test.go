package cluster

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// captured is a cache whose events come from the test.
func captured(t *testing.T, cfg CacheConfig) (*Cache, *capture) {
	t.Helper()
	cfg.Name, cfg.List, cfg.Watch = "things", fakeList, fakeWatch
	if cfg.Example == nil {
		cfg.Example = &corev1.PersistentVolumeClaim{}
	}
	c, err := NewCache(cfg)
	if err != nil {
		t.Fatal(err)
	}
	events := &capture{SharedIndexInformer: c.SharedIndexInformer}
	c.SharedIndexInformer = events
	return c, events
}

// tell describes a call of a handler.
func tell[T metav1.Object](seen *[]string, none T, is func(a, b T) bool) Handler[T] {
	return func(before, after T) {
		switch {
		case is(before, none):
			*seen = append(*seen, "+"+string(after.GetUID()))
		case is(after, none):
			*seen = append(*seen, "-"+string(before.GetUID()))
		default:
			*seen = append(*seen, "~"+string(before.GetUID())+string(after.GetUID()))
		}
	}
}

// A watch that was interrupted shows an object that was deleted and made anew under its name as a change from the one to the
// other. Handlers see the one go and the other come, whatever the kind and whoever it belongs to.
func TestAnObjectMadeAnewIsAnother(t *testing.T) {
	t.Parallel()
	trim := newTrimmer(testDriver, "")
	claim := func(uid types.UID, provisioner string) any {
		claim := claimFrom("a", "c", &corev1.TypedObjectReference{Kind: wellknown.KindClaim, Name: "o"}, provisioner)
		claim.UID = uid
		return mustTrim(t, trim.claim, claim)
	}
	plainClaim := func(uid types.UID) any {
		claim := claimFrom("a", "c", nil, "other.test")
		claim.UID = uid
		return mustTrim(t, trim.claim, claim)
	}
	pv := func(uid types.UID, driver string) any {
		pv := fullPV(driver)
		pv.UID = uid
		return mustTrim(t, trim.pv, pv)
	}
	meta := func(uid types.UID) metav1.ObjectMeta { return metav1.ObjectMeta{Name: "x", UID: uid} }
	pvName := "pv"
	for name, tc := range map[string]struct {
		register      func(c *Cache, seen *[]string) error
		before, after any
		want          []string
	}{
		"a claim of ours":                 {onClaim, claim("1", testDriver), claim("2", testDriver), []string{"-1", "+2"}},
		"a claim of others":               {onClaim, claim("1", "other.test"), claim("2", "other.test"), []string{"-1", "+2"}},
		"a claim of ours, then of others": {onClaim, claim("1", testDriver), plainClaim("2"), []string{"-1"}},
		"a claim of others, then of ours": {onClaim, plainClaim("1"), claim("2", testDriver), []string{"+2"}},
		"a claim that changes":            {onClaim, claim("1", testDriver), claim("1", "other.test"), []string{"~11"}},
		"a PersistentVolume of ours":      {onPV, pv("1", testDriver), pv("2", testDriver), []string{"-1", "+2"}},
		"a PersistentVolume, then others": {onPV, pv("1", testDriver), pv("2", "other.test"), []string{"-1"}},
		"a class": {
			func(c *Cache, seen *[]string) error {
				_, err := register(c, as[*storagev1.StorageClass], nil, tell(seen, nil, func(a, b *storagev1.StorageClass) bool { return a == b }))
				return err
			},
			&storagev1.StorageClass{ObjectMeta: meta("1")}, &storagev1.StorageClass{ObjectMeta: meta("2")}, []string{"-1", "+2"},
		},
		"an attachment": {
			func(c *Cache, seen *[]string) error {
				_, err := register(c, as[*storagev1.VolumeAttachment], nil, tell(seen, nil, func(a, b *storagev1.VolumeAttachment) bool { return a == b }))
				return err
			},
			mustTrim(t, trim.attachment, &storagev1.VolumeAttachment{ObjectMeta: meta("1"), Spec: storagev1.VolumeAttachmentSpec{Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pvName}}}),
			mustTrim(t, trim.attachment, &storagev1.VolumeAttachment{ObjectMeta: meta("2"), Spec: storagev1.VolumeAttachmentSpec{Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pvName}}}),
			[]string{"-1", "+2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, events := captured(t, CacheConfig{})
			var seen []string
			if err := tc.register(c, &seen); err != nil {
				t.Fatal(err)
			}
			events.handler.OnUpdate(tc.before, tc.after)
			if !slices.Equal(seen, tc.want) {
				t.Errorf("the handler saw %q, want %q", seen, tc.want)
			}
		})
	}
}

func onClaim(c *Cache, seen *[]string) error {
	_, err := register(c, asClaim, plain, tell(seen, nil, func(a, b *corev1.PersistentVolumeClaim) bool { return a == b }))
	return err
}

func onPV(c *Cache, seen *[]string) error {
	foreign := func(obj any) bool { _, foreign := obj.(*foreignPV); return foreign }
	_, err := register(c, asPV, foreign, tell(seen, nil, func(a, b *corev1.PersistentVolume) bool { return a == b }))
	return err
}

// A handler that panics for one object gets the others, and the informer lives.
func TestAHandlerThatPanicsGetsTheNextObject(t *testing.T) {
	t.Parallel()
	c, events := captured(t, CacheConfig{})
	var seen []string
	if _, err := register(c, asClaim, nil, func(before, after *corev1.PersistentVolumeClaim) {
		for _, claim := range []*corev1.PersistentVolumeClaim{before, after} {
			if claim != nil && claim.Name == "bad" {
				panic("no such claim")
			}
		}
		seen = append(seen, fmt.Sprint(before != nil, after != nil))
	}); err != nil {
		t.Fatal(err)
	}
	bad, good := claimFrom("a", "bad", nil, testDriver), claimFrom("a", "good", nil, testDriver)
	for _, claim := range []*corev1.PersistentVolumeClaim{bad, good} {
		events.handler.OnAdd(claim, true)
		events.handler.OnUpdate(claim, claim.DeepCopy())
		events.handler.OnDelete(claim)
	}
	if want := []string{"false true", "true true", "true false"}; !slices.Equal(seen, want) {
		t.Errorf("the handler saw %q, want %q", seen, want)
	}
}

// One object that cannot be trimmed or indexed keeps no other one out of the cache.
func TestOneObjectKeepsNoOtherOut(t *testing.T) {
	t.Parallel()
	list := &corev1.PersistentVolumeClaimList{Items: []corev1.PersistentVolumeClaim{
		*claimFrom("a", "bad", nil, testDriver), *claimFrom("a", "good", nil, testDriver),
	}}
	for name, cfg := range map[string]CacheConfig{
		"trim": {Trim: func(obj any) (any, error) {
			if obj.(*corev1.PersistentVolumeClaim).Name == "bad" {
				panic("trim")
			}
			return obj, nil
		}},
		"index": {Indexers: cache.Indexers{"by name": func(obj any) ([]string, error) {
			if obj.(*corev1.PersistentVolumeClaim).Name == "bad" {
				panic("index")
			}
			return []string{obj.(*corev1.PersistentVolumeClaim).Name}, nil
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg.Name, cfg.Example = "things", &corev1.PersistentVolumeClaim{}
			cfg.List = func(context.Context, metav1.ListOptions) (runtime.Object, error) { return list.DeepCopy(), nil }
			cfg.Watch, cfg.Client = fakeWatch, fake.NewClientset()
			c, err := NewCache(cfg)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { c.RunWithContext(ctx); close(ended) }()
			if err := waitFor(ctx, c.HasSynced); err != nil {
				t.Fatal(err)
			}
			if got := c.GetIndexer().ListKeys(); len(got) != 2 {
				t.Errorf("the cache has %q, want both", got)
			}
			cancel()
			<-ended
		})
	}
}
