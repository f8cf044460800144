package provision

import (
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
)

// panicking is an Observer that panics for the first volume that was created.
type panicking struct {
	nobody

	done bool
}

func (p *panicking) VolumeCreated(string, *corev1.VolumeNodeAffinity) {
	if !p.done {
		p.done = true
		panic("observer")
	}
}

// panicOnce panics when the first PersistentVolume is created or the first one deleted.
func panicOnce(verb string) func(string, string, string) error {
	done := false
	return func(v, resource, _ string) error {
		if v == verb && resource == "persistentvolumes" && !done {
			done = true
			panic("client")
		}
		return nil
	}
}

// unlocked fails the test when something is left behind that only a worker at work may hold.
func (w *world) unlocked() {
	w.Helper()
	w.c.locks.mu.Lock()
	defer w.c.locks.mu.Unlock()
	if n := len(w.c.locks.held); n != 0 {
		w.Errorf("%d claims are locked", n)
	}
	if calling := w.c.creates.where(func(cr create) bool { return cr.calling }); len(calling) != 0 {
		w.Errorf("calls are under way for %q", calling)
	}
}

// Wherever the work on a claim panics, it goes on later, and the process lives. When the claim goes meanwhile, the volume that
// may have been made is not forgotten. Nothing else remembers it here.
func TestAPanicForgetsNoVolume(t *testing.T) {
	t.Parallel()
	inDriver := func(*Config) func(w *world) {
		return func(w *world) { w.driver.answers(answer{edit: func(*csi.Volume) { panic("driver") }}) }
	}
	inMetrics := func(cfg *Config) func(w *world) {
		cfg.Observer = &panicking{}
		return func(*world) {}
	}
	inSave := func(*Config) func(w *world) {
		return func(w *world) { w.api.failing(panicOnce("create")) }
	}
	for name, prepare := range map[string]func(*Config) func(w *world){
		"in the call": inDriver, "after the answer": inMetrics, "while the PersistentVolume is saved": inSave,
	} {
		t.Run(name+", and the claim stays", func(t *testing.T) {
			var begin func(w *world)
			inWorld(t, func(cfg *Config) { cfg.Operations, begin = nil, prepare(cfg) }, func(t *testing.T, w *world) {
				begin(w)
				w.claim("c")
				w.pass(10 * time.Millisecond)
				w.unlocked()
				if !w.inLog("Panic recovered") {
					t.Error("nothing has panicked")
				}
				w.pass(time.Minute)
				w.unlocked()
				if w.pv("pvc-uid-of-c") == nil {
					t.Error("the claim has no PersistentVolume")
				}
			})
		})
		t.Run(name+", and the claim goes", func(t *testing.T) {
			var begin func(w *world)
			inWorld(t, func(cfg *Config) { cfg.Operations, begin = nil, prepare(cfg) }, func(t *testing.T, w *world) {
				begin(w)
				claim := w.claim("c")
				w.pass(10 * time.Millisecond)
				w.remove(claim)
				w.pass(time.Minute)
				w.unlocked()
				// Saved, it is released by Kubernetes and deleted by us.
				if w.driver.volumeCount() != 0 && w.pv("pvc-uid-of-c") == nil {
					t.Error("the volume is forgotten")
				}
			})
		})
	}
}

// A place of --max-creates-per-source is given back by whoever panics: the other claim does not wait for ever.
func TestAPanicGivesTheTurnBack(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.MaxCreatesPerSource, cfg.RetryStart = 1, time.Hour; cfg.RetryMax = time.Hour }, func(t *testing.T, w *world) {
		w.driver.answers(answer{after: time.Second, edit: func(*csi.Volume) { panic("driver") }})
		w.origin("src")
		w.clone("c", "src")
		w.pass(100 * time.Millisecond)
		w.clone("d", "src")
		w.pass(time.Minute)
		w.unlocked()
		if w.pv("pvc-uid-of-d") == nil {
			t.Error("the claim that waited for its place has no PersistentVolume")
		}
	})
}

// The deletion of a volume that panics goes on later.
func TestAPanicKeepsADeletion(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.api.failing(panicOnce("delete"))
		w.put(released().Obj())
		w.pass(10 * time.Millisecond)
		w.unlocked()
		if !w.inLog("Panic recovered") {
			t.Error("nothing has panicked")
		}
		w.pass(time.Minute)
		if w.pv("pv") != nil {
			t.Error("the PersistentVolume is still there")
		}
	})
}
