package capacity

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// server keeps objects as an API server does: versions, UIDs, preconditions, and a watch that may lag.
type server struct {
	mu       sync.Mutex
	objects  map[string]*storagev1.CSIStorageCapacity
	version  int
	lag      time.Duration
	turns    time.Duration                 // for which a create waits, if its context lets it
	mute     bool                          // the watch tells nothing
	fail     func(verb, name string) error // nil: nothing fails
	watchers []chan timedEvent
	writes   map[string]int // verb → calls that succeeded
}

// asObjects is the client and cache of a controller.
func (s *server) asObjects(t *testing.T) *Objects {
	t.Helper()
	cache, err := cluster.NewCache(cluster.CacheConfig{
		Name: ResourceName, Example: &storagev1.CSIStorageCapacity{}, Trim: trimmed, List: s.list, Watch: s.watch, Client: noStreams{},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &Objects{
		cfg:    ObjectsConfig{DriverName: testDriver, ManagedBy: testManagedBy, Namespace: testNamespace},
		cache:  cache,
		writer: s,
	}
}

// noStreams is a client whose lists cannot be streamed.
type noStreams struct{}

func (noStreams) IsWatchListSemanticsUnSupported() bool { return true }

type timedEvent struct {
	at time.Time
	watch.Event
}

func newServer(objects ...*storagev1.CSIStorageCapacity) *server {
	s := &server{objects: map[string]*storagev1.CSIStorageCapacity{}, writes: map[string]int{}}
	for _, object := range objects {
		s.store(watch.Added, object.DeepCopy())
	}
	return s
}

// store fills in what a server does and tells the watchers. The caller holds mu, or is alone.
func (s *server) store(event watch.EventType, object *storagev1.CSIStorageCapacity) *storagev1.CSIStorageCapacity {
	s.version++
	object.ResourceVersion = fmt.Sprint(s.version)
	if event == watch.Added {
		if object.UID == "" {
			object.UID = types.UID(fmt.Sprintf("uid-%d", s.version))
		}
		if object.Name == "" {
			object.Name = fmt.Sprintf("%s%05d", object.GenerateName, s.version)
		}
		if object.CreationTimestamp.IsZero() {
			object.CreationTimestamp = metav1.NewTime(time.Now().Truncate(time.Second))
		}
	}
	if event == watch.Deleted {
		delete(s.objects, object.Name)
	} else {
		s.objects[object.Name] = object
	}
	// The watch is filtered: what is not ours any more is deleted as far as it tells, what never was is not told.
	// Deleting what a cache never had does no harm.
	if !ours(object) {
		event = watch.Deleted
	}
	for _, watcher := range s.watchers {
		if s.mute {
			break
		}
		watcher <- timedEvent{time.Now().Add(s.lag), watch.Event{Type: event, Object: object.DeepCopy()}}
	}
	return object.DeepCopy()
}

func ours(object *storagev1.CSIStorageCapacity) bool {
	return object.Labels[wellknown.LabelDriverName] == testDriver && object.Labels[wellknown.LabelManagedBy] == testManagedBy
}

func (s *server) refuse(verb, name string) error {
	if s.fail == nil {
		return nil
	}
	return s.fail(verb, name)
}

var capacities = schema.GroupResource{Group: "storage.k8s.io", Resource: "csistoragecapacities"}

func (s *server) create(ctx context.Context, object *storagev1.CSIStorageCapacity) (*storagev1.CSIStorageCapacity, error) {
	if s.turns > 0 {
		select {
		case <-time.After(s.turns):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refuse("create", object.StorageClassName); err != nil {
		return nil, err
	}
	s.writes["create"]++
	return s.store(watch.Added, object.DeepCopy()), nil
}

func (s *server) update(_ context.Context, object *storagev1.CSIStorageCapacity) (*storagev1.CSIStorageCapacity, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refuse("update", object.Name); err != nil {
		return nil, err
	}
	is, there := s.objects[object.Name]
	if !there {
		return nil, apierrors.NewNotFound(capacities, object.Name)
	}
	if is.ResourceVersion != object.ResourceVersion || is.UID != object.UID {
		return nil, apierrors.NewConflict(capacities, object.Name, fmt.Errorf("version %s is not %s", object.ResourceVersion, is.ResourceVersion))
	}
	s.writes["update"]++
	return s.store(watch.Modified, object.DeepCopy()), nil
}

func (s *server) delete(_ context.Context, name string, uid types.UID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refuse("delete", name); err != nil {
		return err
	}
	is, there := s.objects[name]
	if !there {
		return apierrors.NewNotFound(capacities, name)
	}
	if is.UID != uid {
		return apierrors.NewConflict(capacities, name, fmt.Errorf("UID %s is not %s", uid, is.UID))
	}
	s.writes["delete"]++
	s.store(watch.Deleted, is.DeepCopy())
	return nil
}

// edit changes an object as somebody else; f returning false deletes it.
func (s *server) edit(name string, f func(*storagev1.CSIStorageCapacity) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	object := s.objects[name].DeepCopy()
	if f(object) {
		s.store(watch.Modified, object)
	} else {
		s.store(watch.Deleted, object)
	}
}

func (s *server) add(object *storagev1.CSIStorageCapacity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(watch.Added, object.DeepCopy())
}

func (s *server) list(context.Context, metav1.ListOptions) (runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := &storagev1.CSIStorageCapacityList{ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(s.version)}}
	for _, object := range s.objects {
		if !ours(object) {
			continue
		}
		list.Items = append(list.Items, *object.DeepCopy())
	}
	return list, nil
}

func (s *server) watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := make(chan timedEvent, 1000)
	s.watchers = append(s.watchers, in)
	w := &laggingWatch{result: make(chan watch.Event), stop: make(chan struct{})}
	go w.deliver(in)
	return w, nil
}

// laggingWatch delivers each event at its time.
type laggingWatch struct {
	result chan watch.Event
	stop   chan struct{}
	once   sync.Once
}

func (w *laggingWatch) ResultChan() <-chan watch.Event { return w.result }

func (w *laggingWatch) Stop() { w.once.Do(func() { close(w.stop) }) }

func (w *laggingWatch) deliver(in <-chan timedEvent) {
	defer close(w.result)
	for {
		select {
		case <-w.stop:
			return
		case event := <-in:
			if wait := time.Until(event.at); wait > 0 {
				select {
				case <-time.After(wait):
				case <-w.stop:
					return
				}
			}
			select {
			case w.result <- event.Event:
			case <-w.stop:
				return
			}
		}
	}
}

// get returns the objects, sorted by name.
func (s *server) get() []*storagev1.CSIStorageCapacity {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []*storagev1.CSIStorageCapacity{}
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		all = append(all, s.objects[name].DeepCopy())
	}
	return all
}

// pairs returns class, segment and capacity of each object, sorted.
func (s *server) pairs() []string {
	pairs := []string{}
	for _, object := range s.get() {
		pairs = append(pairs, fmt.Sprintf("%s %s %s", object.StorageClassName, keyOf(object).Segment, object.Capacity))
	}
	slices.Sort(pairs)
	return pairs
}

// written returns how many writes succeeded since it was last called, as "create 2, update 1".
func (s *server) written() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var parts []string
	for _, verb := range slices.Sorted(maps.Keys(s.writes)) {
		parts = append(parts, fmt.Sprintf("%s %d", verb, s.writes[verb]))
	}
	s.writes = map[string]int{}
	return strings.Join(parts, ", ")
}

// failing makes writes of the verb fail with err until the test changes it; nil lets them pass.
func (s *server) failing(verb string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = func(v, _ string) error {
		if v == verb {
			return err
		}
		return nil
	}
}
