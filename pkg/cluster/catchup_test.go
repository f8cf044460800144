package cluster

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

func TestCatchUpReached(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		aim, stored string
		want        bool
	}{
		"older":                      {"100", "99", false},
		"older by digits":            {"100", "9", false},
		"the same":                   {"100", "100", true},
		"newer":                      {"100", "1000", true},
		"longer than any integer":    {"99999999999999999999", "100000000000000000000", true},
		"nothing is stored":          {"100", "", false},
		"the server did not tell":    {"", "100", false},
		"nobody told anything":       {"", "", false},
		"what no version looks like": {"a", "b", false},
	} {
		var u catchUp
		u.aim(tc.aim)
		if got := u.reached(func() string { return tc.stored }); got != tc.want {
			t.Errorf("%s: reached = %v, want %v", name, got, tc.want)
		}
	}
	var u catchUp
	if u.reached(func() string { return "100" }) {
		t.Error("a cache has caught up before anybody asked the API server")
	}
	u.aim("7")
	if !u.reached(func() string { return "7" }) || !u.reached(func() string { return "" }) {
		t.Error("what was reached stays reached")
	}
	if u.aim("8"); u.reached(func() string { return "7" }) {
		t.Error("the next work began with what the last had reached")
	}
}

// script is an API server with PersistentVolumes at a version, whose watch a test feeds.
type script struct {
	version atomic.Int64
	away    atomic.Bool
	lists   atomic.Int64 // of one object: reads of the version
	events  chan watch.Event
}

func (s *script) list(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if o.Limit == 1 {
		s.lists.Add(1)
	}
	if s.away.Load() {
		return nil, errors.New("no connection")
	}
	return &corev1.PersistentVolumeList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatInt(s.version.Load(), 10)}}, nil
}

func (s *script) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if o.SendInitialEvents != nil {
		return nil, errors.New("no streamed lists")
	}
	w := watch.NewFake()
	go func() {
		for {
			select {
			case event := <-s.events:
				w.Action(event.Type, event.Object)
			case <-ctx.Done():
				return
			}
		}
	}()
	return w, nil
}

func atVersion(n int64) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", ResourceVersion: strconv.FormatInt(n, 10)}}
}

// A standby was cut off and leads before its watch is back: its cache has caught up when it has stored what the API server had
// then, by an event or by a bookmark, and not before. Until the API server tells which version that is, it has not.
func TestACacheHasCaughtUpWhenItStoresWhatTheServerHad(t *testing.T) {
	t.Parallel()
	for name, event := range map[string]watch.Event{
		"an event":   {Type: watch.Modified, Object: atVersion(20)},
		"a bookmark": {Type: watch.Bookmark, Object: atVersion(20)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &script{events: make(chan watch.Event)}
				s.version.Store(5)
				c, err := NewCache(CacheConfig{Name: "persistentvolumes", Example: &corev1.PersistentVolume{}, List: s.list, Watch: s.watch, Client: s})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer func() { cancel(); synctest.Wait() }()
				go c.RunWithContext(ctx)
				for !c.HasSynced() {
					time.Sleep(time.Millisecond)
				}
				i := &Informers{pvs: c}
				if i.CaughtUp(PVs) {
					t.Error("it has caught up before the work begins")
				}
				if !i.CaughtUp(Claims) {
					t.Error("a cache that is not kept is waited for")
				}

				s.version.Store(20)
				s.away.Store(true)
				go i.CatchUp(ctx)
				time.Sleep(10 * time.Second)
				if i.CaughtUp(PVs) {
					t.Error("it has caught up although the API server did not answer")
				}
				s.away.Store(false)
				s.events <- watch.Event{Type: watch.Modified, Object: atVersion(19)}
				time.Sleep(2 * time.Second)
				if i.CaughtUp(PVs) {
					t.Error("it has caught up with version 19, and the API server had 20")
				}
				s.events <- event
				synctest.Wait()
				if !i.CaughtUp(PVs) {
					t.Errorf("it has not caught up with version 20, the store says %q", c.GetIndexer().LastStoreSyncResourceVersion())
				}
				if n := s.lists.Load(); n < 2 || n > 15 {
					t.Errorf("the version was read %d times, want once a second until there was an answer", n)
				}
			})
		})
	}
}
