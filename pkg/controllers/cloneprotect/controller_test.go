package cloneprotect

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// cacheOf is a cache with these claims; register gives the handler to the test.
type cacheOf struct {
	claims   map[string]*corev1.PersistentVolumeClaim // namespace/name → claim
	handler  cluster.Handler[*corev1.PersistentVolumeClaim]
	bySource int // how often the index was asked
}

func (c *cacheOf) Claim(namespace, name string) *corev1.PersistentVolumeClaim {
	return c.claims[namespace+"/"+name]
}

func (c *cacheOf) ClaimsBySource(key string) []*corev1.PersistentVolumeClaim {
	c.bySource++
	var found []*corev1.PersistentVolumeClaim
	for _, claim := range c.claims {
		if source.Key(claim) == key {
			found = append(found, claim)
		}
	}
	return found
}

func (c *cacheOf) OnClaim(handler cluster.Handler[*corev1.PersistentVolumeClaim]) (func() bool, error) {
	c.handler = handler
	return func() bool { return true }, nil
}

func newCache(claims ...*corev1.PersistentVolumeClaim) *cacheOf {
	c := &cacheOf{claims: map[string]*corev1.PersistentVolumeClaim{}}
	for _, claim := range claims {
		c.claims[claim.Namespace+"/"+claim.Name] = claim
	}
	return c
}

// creates are the keys of the sources that outstanding creates read.
type creates map[string]bool

func (c creates) ForSource(key string) bool { return c[key] }

const foreign = "example.com/other"

func origin() *fixture.ClaimBuilder {
	return fixture.Claim("src").UID("src").Finalizer("a", wellknown.FinalizerCloneSource, foreign)
}

func phase(claim *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
	claim.Status.Phase = phase
	return claim
}

func clone(name string) *fixture.ClaimBuilder { return fixture.Claim(name).UID(name).FromClaim("src") }

// abroad is a clone of src in another namespace.
func abroad() *fixture.ClaimBuilder {
	return fixture.Claim("c").Namespace("other").UID("c").FromAbroad("", wellknown.KindClaim, "default", "src")
}

// granted lets abroad be.
func granted(namespace string) ([]*gatewayv1beta1.ReferenceGrant, error) {
	return []*gatewayv1beta1.ReferenceGrant{{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace},
		Spec: gatewayv1beta1.ReferenceGrantSpec{
			From: []gatewayv1beta1.ReferenceGrantFrom{{Kind: wellknown.KindClaim, Namespace: "other"}},
			To:   []gatewayv1beta1.ReferenceGrantTo{{Kind: wellknown.KindClaim}},
		},
	}}, nil
}

// writes counts the updates that reached the API server, and what became of the finalizers.
func writes(client *fake.Clientset) (count int, finalizers []string) {
	for _, action := range client.Actions() {
		if update, ok := action.(clienttesting.UpdateAction); ok {
			count++
			finalizers = update.GetObject().(*corev1.PersistentVolumeClaim).Finalizers
		}
	}
	return count, finalizers
}

func TestProcess(t *testing.T) {
	t.Parallel()
	going := origin().Terminating().Obj()
	self := origin().Terminating().FromClaim("src").Obj()
	claims := schema.GroupResource{Resource: "persistentvolumeclaims"}
	for name, tc := range map[string]struct {
		origin, live *corev1.PersistentVolumeClaim // live is what the API server has; default: the same
		clones       []*corev1.PersistentVolumeClaim
		outstanding  creates
		grants       source.Grants
		err          error // of the update
		want         string
		wantWrites   int
	}{
		"nobody needs it": {origin: going, want: "done", wantWrites: 1},
		"a bound clone does not need it": {
			origin: going, want: "done", wantWrites: 1,
			clones: []*corev1.PersistentVolumeClaim{clone("c").Bound("pv").Obj()},
		},
		"a lost clone does not need it": {
			origin: going, want: "done", wantWrites: 1,
			clones: []*corev1.PersistentVolumeClaim{phase(clone("c").Obj(), corev1.ClaimLost)},
		},
		"a pending clone needs it": {
			origin: going, want: "again",
			clones: []*corev1.PersistentVolumeClaim{phase(clone("c").Obj(), corev1.ClaimPending)},
		},
		"a clone without a phase needs it": {
			origin: going, want: "again", clones: []*corev1.PersistentVolumeClaim{clone("c").Obj()},
		},
		"one of two needs it": {
			origin: going, want: "again",
			clones: []*corev1.PersistentVolumeClaim{clone("c").Bound("pv").Obj(), clone("d").Obj()},
		},
		"a clone that is being deleted and has no volume yet needs it": {
			origin: going, want: "again", clones: []*corev1.PersistentVolumeClaim{clone("c").Terminating().Obj()},
		},
		"a clone in another namespace needs it": {
			origin: going, want: "again", clones: []*corev1.PersistentVolumeClaim{abroad().Obj()}, grants: granted,
		},
		"a clone in another namespace that may not be does not": {
			origin: going, want: "done", wantWrites: 1, clones: []*corev1.PersistentVolumeClaim{abroad().Obj()},
			grants: func(string) ([]*gatewayv1beta1.ReferenceGrant, error) { return nil, nil },
		},
		"nor where that is not allowed at all": {
			origin: going, want: "done", wantWrites: 1, clones: []*corev1.PersistentVolumeClaim{abroad().Obj()},
		},
		"nor one that carries our finalizer, which anybody can write on a claim": {
			origin: going, want: "done", wantWrites: 1,
			clones: []*corev1.PersistentVolumeClaim{abroad().Class("does-not-exist").Finalizer(wellknown.FinalizerProvisioningInProgress).Obj()},
			grants: func(string) ([]*gatewayv1beta1.ReferenceGrant, error) { return nil, nil },
		},
		"a create of one whose grant was withdrawn needs it": {
			origin: going, want: "busy", clones: []*corev1.PersistentVolumeClaim{abroad().Obj()},
			outstanding: creates{source.ClaimKey("default", "src"): true},
		},
		"one may need it while grants cannot be read": {
			origin: going, want: "again", clones: []*corev1.PersistentVolumeClaim{abroad().Obj()},
			grants: func(string) ([]*gatewayv1beta1.ReferenceGrant, error) { return nil, errors.New("not in sync") },
		},
		"a clone of an equally named source elsewhere does not": {
			origin: going, want: "done", wantWrites: 1,
			clones: []*corev1.PersistentVolumeClaim{fixture.Claim("c").Namespace("other").FromClaim("src").Obj()},
		},
		"a claim of a foreign kind with the same name does not": {
			origin: going, want: "done", wantWrites: 1,
			clones: []*corev1.PersistentVolumeClaim{fixture.Claim("c").From("example.com", wellknown.KindClaim, "src").Obj()},
		},
		"it does not wait for itself": {origin: self, want: "done", wantWrites: 1},
		"a create whose claim is gone needs it": {
			origin: going, want: "busy", outstanding: creates{source.ClaimKey("default", "src"): true},
		},
		"a create from another source does not": {
			origin: going, want: "done", wantWrites: 1, outstanding: creates{source.ClaimKey("default", "other"): true},
		},
		"it is not being deleted": {origin: origin().Obj(), want: "done"},
		"it has no finalizer of ours": {
			origin: fixture.Claim("src").Finalizer(foreign).Terminating().Obj(), want: "done",
		},
		"it is not in the cache":                        {want: "done", live: going},
		"it is gone already":                            {origin: going, live: fixture.Claim("x").Obj(), want: "done"},
		"another one has taken its name":                {origin: going, live: origin().UID("new").Terminating().Obj(), want: "done"},
		"somebody else was faster":                      {origin: going, live: fixture.Claim("src").UID("src").Finalizer(foreign).Terminating().Obj(), want: "done"},
		"the API server says it is not being deleted":   {origin: going, live: origin().Obj(), want: "done"},
		"the write is refused":                          {origin: going, want: "again", wantWrites: 1, err: apierrors.NewForbidden(claims, "src", nil)},
		"the write meets another one, again and again":  {origin: going, want: "again", wantWrites: 5, err: apierrors.NewConflict(claims, "src", errors.New("changed"))},
		"the object goes away between read and write":   {origin: going, want: "done", wantWrites: 1, err: apierrors.NewNotFound(claims, "src")},
		"the API server cannot be reached for a moment": {origin: going, want: "again", wantWrites: 1, err: errors.New("connection refused")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cached := newCache(tc.clones...)
			live := tc.live
			if tc.origin != nil {
				cached.claims["default/src"] = tc.origin
				if live == nil {
					live = tc.origin.DeepCopy()
				}
			}
			client := fake.NewClientset(live)
			if tc.err != nil {
				client.PrependReactor("update", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, tc.err })
			}
			c := newController(t, Config{Claims: cached, Client: client, Outstanding: tc.outstanding, Grants: tc.grants})
			if got := c.process(t.Context(), types.NamespacedName{Namespace: "default", Name: "src"}).String(); got != tc.want {
				t.Errorf("verdict %s, want %s", got, tc.want)
			}
			count, finalizers := writes(client)
			if count != tc.wantWrites {
				t.Errorf("%d writes, want %d", count, tc.wantWrites)
			}
			if count > 0 && !slices.Equal(finalizers, []string{"a", foreign}) {
				t.Errorf("finalizers %v were written, want the others in their order", finalizers)
			}
			if cached.bySource > 1 {
				t.Errorf("the index was asked %d times, want once", cached.bySource)
			}
		})
	}
}

func newController(t *testing.T, cfg Config) *Controller {
	t.Helper()
	cfg.RetryStart, cfg.RetryMax = time.Second, 5*time.Minute
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Which change of which claim brings the source to a worker.
func TestChanged(t *testing.T) {
	t.Parallel()
	type claim = *corev1.PersistentVolumeClaim
	going := origin().Terminating().Obj()
	for name, tc := range map[string]struct {
		before, after claim
		origin        claim // what the cache has; default: one that is being deleted
		want          int   // keys in the queue
	}{
		"a source begins to go":                      {before: origin().Obj(), after: going, want: 1},
		"a source that goes is seen for the first":   {after: going, want: 1},
		"a source that goes is seen again":           {before: going, after: going, want: 1},
		"a source that stays":                        {before: origin().Obj(), after: origin().Obj()},
		"a claim that goes and was never a source":   {after: fixture.Claim("x").Terminating().Obj()},
		"a source is gone":                           {before: going},
		"a clone becomes bound":                      {before: clone("c").Obj(), after: clone("c").Bound("pv").Obj(), want: 1},
		"a clone is lost":                            {before: clone("c").Obj(), after: phase(clone("c").Obj(), corev1.ClaimLost), want: 1},
		"a clone is gone":                            {before: phase(clone("c").Obj(), corev1.ClaimPending), want: 1},
		"a clone appears":                            {after: clone("c").Obj()},
		"a clone gets a phase":                       {before: clone("c").Obj(), after: phase(clone("c").Obj(), corev1.ClaimPending)},
		"a bound clone changes":                      {before: clone("c").Bound("pv").Obj(), after: clone("c").Bound("pv").Obj()},
		"a bound clone is gone":                      {before: clone("c").Bound("pv").Obj()},
		"a clone is bound and its source stays":      {before: clone("c").Obj(), after: clone("c").Bound("pv").Obj(), origin: origin().Obj()},
		"a clone of a source that nobody knows":      {before: fixture.Claim("c").FromClaim("gone").Obj()},
		"a restore from an equally named snapshot":   {before: fixture.Claim("c").FromSnapshot("src").Obj()},
		"a claim without a source is bound":          {before: fixture.Claim("c").Obj(), after: fixture.Claim("c").Bound("pv").Obj()},
		"a clone in another namespace becomes bound": {before: fixture.Claim("c").Namespace("other").FromAbroad("", wellknown.KindClaim, "default", "src").Obj(), want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.origin == nil {
				tc.origin = going
			}
			c := newController(t, Config{Claims: newCache(tc.origin), Client: fake.NewClientset()})
			c.changed(tc.before, tc.after)
			if got := c.loop.Len(); got != tc.want {
				t.Errorf("%d keys are queued, want %d", got, tc.want)
			}
		})
	}
}

// Instances on many nodes look at a source at different times, so that one of them writes.
func TestSpreadDelaysTheLook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		going := origin().Terminating().Obj()
		client := fake.NewClientset(going)
		c := newController(t, Config{Claims: newCache(going), Client: client, Threads: 1, Spread: 10 * time.Second})
		stop, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(stop, t.Context()) }()
		synctest.Wait()
		c.changed(nil, going)
		synctest.Wait()
		if count, _ := writes(client); count != 0 {
			t.Error("written at once")
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if count, _ := writes(client); count != 1 {
			t.Errorf("%d writes after the spread, want 1", count)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestNewChecksItsConfig(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"no cache":    {Client: fake.NewClientset(), RetryStart: 1, RetryMax: 1},
		"no client":   {Claims: newCache(), RetryStart: 1, RetryMax: 1},
		"no back-off": {Claims: newCache(), Client: fake.NewClientset()},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "cloneprotect") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
