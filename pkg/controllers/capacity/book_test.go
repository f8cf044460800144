package capacity

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// Whatever happens in whatever order: what the book keeps incrementally is what follows from its parts, and
// when all turns are taken the objects are segments × classes.
func TestBookUnderRandomEvents(t *testing.T) {
	t.Parallel()
	for seed := range 50 {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			w := &world{t: t, b: newBook(), rnd: rand.New(rand.NewPCG(uint64(seed), 1)), now: time.Unix(0, 0)}
			p := newPoller(time.Minute)
			for range 400 {
				w.event()
				w.now = w.now.Add(time.Duration(w.rnd.IntN(2000)) * time.Millisecond)
				if w.rnd.IntN(3) == 0 {
					p.poll(w.b, w.now)
				}
				w.takeTurns(w.rnd.IntN(4))
				checkBook(t, w.b)
				if t.Failed() {
					return
				}
			}
			// Now it gets quiet.
			for range 10 {
				w.showAll()
				w.failing = false
				w.retry()
				w.takeTurns(10_000)
			}
			w.showAll()
			checkBook(t, w.b)
			if got := w.b.counts; got.current != got.goal || got.obsolete != 0 {
				t.Errorf("counts when all is quiet %+v, want all there and nothing obsolete", got)
			}
			if len(w.objects) != w.b.counts.goal {
				t.Errorf("%d objects, want %d", len(w.objects), w.b.counts.goal)
			}
			if len(w.b.items) != w.b.counts.goal || len(w.b.byUID) != w.b.counts.goal || w.b.line.Len() != w.b.counts.goal {
				t.Errorf("%d items, %d UIDs, %d resting, want %d of each", len(w.b.items), len(w.b.byUID), w.b.line.Len(), w.b.counts.goal)
			}
		})
	}
}

// world is a server, a watch and a queue around a book, all of them slow.
type world struct {
	t       *testing.T
	b       *book
	rnd     *rand.Rand
	now     time.Time
	objects []*storagev1.CSIStorageCapacity // on the server
	unseen  []func()                        // what the watch has not shown yet
	queue   []Key
	waiting []Key
	version int
	failing bool
}

func (w *world) pick() (string, topology.Segment) {
	return fmt.Sprint("class-", w.rnd.IntN(3)), place(fmt.Sprint(w.rnd.IntN(2)), fmt.Sprint(w.rnd.IntN(3)))
}

func (w *world) event() {
	class, segment := w.pick()
	switch w.rnd.IntN(9) {
	case 0:
		w.b.changeSegments([]topology.Segment{segment}, nil)
	case 1:
		w.b.changeSegments(nil, []topology.Segment{segment})
	case 2:
		w.b.setClass(class, nil)
	case 3:
		w.b.removeClass(class)
	case 4:
		w.b.refreshReachable(class, nil)
	case 5:
		w.put(published(class, segment, 1)) // somebody makes one
	case 6:
		if len(w.objects) > 0 {
			w.remove(w.objects[w.rnd.IntN(len(w.objects))].UID) // somebody deletes one
		}
	case 7:
		w.failing = !w.failing
	case 8:
		w.retry()
	}
	for len(w.unseen) > 0 && w.rnd.IntN(2) == 0 {
		w.unseen[0]()
		w.unseen = w.unseen[1:]
	}
}

func (w *world) showAll() {
	for _, show := range w.unseen {
		show()
	}
	w.unseen = nil
}

func (w *world) retry() {
	w.queue = append(w.queue, w.waiting...)
	w.waiting = nil
}

func (w *world) put(object *storagev1.CSIStorageCapacity) *storagev1.CSIStorageCapacity {
	w.version++
	object.Name = fmt.Sprint("o-", w.version)
	object.UID = types.UID(object.Name)
	object.ResourceVersion = fmt.Sprint(w.version)
	object.CreationTimestamp = metav1.NewTime(w.now.Truncate(time.Second))
	w.objects = append(w.objects, object)
	w.unseen = append(w.unseen, func() { w.b.observe(object) })
	return object
}

func (w *world) remove(uid types.UID) {
	for i, object := range w.objects {
		if object.UID == uid {
			w.objects = append(w.objects[:i:i], w.objects[i+1:]...)
			w.unseen = append(w.unseen, func() { w.b.forget(uid) })
			return
		}
	}
}

// takeTurns processes up to n keys as the controller does.
func (w *world) takeTurns(n int) {
	for range n {
		for _, key := range w.b.takeWake() {
			if !slices.Contains(w.queue, key) { // equal keys merge in the real queue
				w.queue = append(w.queue, key)
			}
		}
		if len(w.queue) == 0 {
			return
		}
		key := w.queue[0]
		w.queue = w.queue[1:]
		if !w.b.begin(key) {
			continue
		}
		w.b.end(key, w.turn(key), w.now)
		if it := w.b.items[key]; it != nil && it.waiting {
			w.waiting = append(w.waiting, key)
		}
	}
}

func (w *world) turn(key Key) (failed bool) {
	v := w.b.view(key, w.now)
	for _, object := range v.surplus {
		if w.failing {
			w.b.kept(object.UID)
			failed = true
			continue
		}
		w.remove(object.UID)
	}
	if w.rnd.IntN(3) == 0 {
		w.event() // while the driver is asked
	}
	if w.failing {
		return true
	}
	v = w.b.view(key, w.now)
	changes := plan(v, testIdentity, &room{available: 1})
	for _, object := range changes.Delete {
		w.remove(object.UID)
	}
	if changes.Create != nil {
		created := w.put(changes.Create)
		if w.rnd.IntN(2) == 0 {
			w.showAll() // the watch is faster than the answer
		}
		w.b.created(key, created, w.now)
	}
	return failed
}
