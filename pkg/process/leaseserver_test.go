package process

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

var leaseResource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// leaseServer keeps one lease as the API server does: with resource versions that are checked and watches that
// begin with what is there. It can refuse verbs, be away, and let requests hang.
type leaseServer struct {
	coordinationv1client.LeaseInterface // what is not implemented panics

	mu       sync.Mutex
	lease    *coordinationv1.Lease
	version  int
	watches  []*leaseWatch
	requests []string         // verbs, with the holder that a write asked for
	refuse   map[string]error // verb → answer
	hang     map[string]bool  // verb → no answer before the request's deadline
}

func newLeaseServer() *leaseServer {
	return &leaseServer{refuse: map[string]error{}, hang: map[string]bool{}}
}

func (s *leaseServer) Leases(string) coordinationv1client.LeaseInterface { return s }

// answer waits or fails as told. It is called with s.mu held and returns with it held.
func (s *leaseServer) answer(ctx context.Context, request, verb string) error {
	s.requests = append(s.requests, request)
	for s.hang[verb] {
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			s.mu.Lock()
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
		s.mu.Lock()
	}
	return s.refuse[verb]
}

func (s *leaseServer) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.answer(ctx, "get", "get"); err != nil {
		return nil, err
	}
	if s.lease == nil {
		return nil, apierrors.NewNotFound(leaseResource, name)
	}
	return s.lease.DeepCopy(), nil
}

func (s *leaseServer) Create(ctx context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.answer(ctx, "create "+*lease.Spec.HolderIdentity, "create"); err != nil {
		return nil, err
	}
	if s.lease != nil {
		return nil, apierrors.NewAlreadyExists(leaseResource, lease.Name)
	}
	return s.store(lease), nil
}

func (s *leaseServer) Update(ctx context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.answer(ctx, "update "+*lease.Spec.HolderIdentity, "update"); err != nil {
		return nil, err
	}
	if s.lease == nil {
		return nil, apierrors.NewNotFound(leaseResource, lease.Name)
	}
	if lease.ResourceVersion != s.lease.ResourceVersion {
		return nil, apierrors.NewConflict(leaseResource, lease.Name, nil)
	}
	return s.store(lease), nil
}

func (s *leaseServer) Watch(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.answer(ctx, "watch", "watch"); err != nil {
		return nil, err
	}
	w := &leaseWatch{server: s, events: make(chan watch.Event, 1000)}
	if s.lease != nil {
		w.events <- watch.Event{Type: watch.Added, Object: s.lease.DeepCopy()}
	}
	s.watches = append(s.watches, w)
	return w, nil
}

// leaseWatch is one watch of the lease; its server closes it.
type leaseWatch struct {
	server *leaseServer
	events chan watch.Event
}

func (w *leaseWatch) ResultChan() <-chan watch.Event { return w.events }

func (w *leaseWatch) Stop() {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	w.server.watches = slices.DeleteFunc(w.server.watches, func(x *leaseWatch) bool { return x == w })
}

// tell sends an event to all watches. s.mu is held.
func (s *leaseServer) tell(what watch.EventType) {
	for _, w := range s.watches {
		w.events <- watch.Event{Type: what, Object: s.lease.DeepCopy()}
	}
}

// store keeps a copy and tells the watches. s.mu is held.
func (s *leaseServer) store(lease *coordinationv1.Lease) *coordinationv1.Lease {
	s.version++
	s.lease = lease.DeepCopy()
	s.lease.ResourceVersion = strconv.Itoa(s.version)
	s.tell(watch.Modified)
	return s.lease.DeepCopy()
}

// edit changes the lease as somebody else would.
func (s *leaseServer) edit(change func(*coordinationv1.Lease)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lease := s.lease.DeepCopy()
	change(lease)
	s.store(lease)
}

// take writes the lease in the name of holder, for so many seconds.
func (s *leaseServer) take(holder string, seconds int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := metav1.NowMicro()
	lease := &coordinationv1.Lease{}
	if s.lease != nil {
		lease = s.lease.DeepCopy()
	}
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &holder, &seconds, &now
	s.store(lease)
}

// remove deletes the lease.
func (s *leaseServer) remove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell(watch.Deleted)
	s.lease = nil
}

// deny makes verbs fail with err; nil lets them pass again.
func (s *leaseServer) deny(err error, verbs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, verb := range verbs {
		s.refuse[verb] = err
	}
}

// freeze makes verbs hang, or no longer.
func (s *leaseServer) freeze(on bool, verbs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, verb := range verbs {
		s.hang[verb] = on
	}
}

// breakWatches ends all watches.
func (s *leaseServer) breakWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.watches {
		close(w.events)
	}
	s.watches = nil
}

// current returns the lease as it is.
func (s *leaseServer) current() *coordinationv1.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease.DeepCopy()
}

func (s *leaseServer) holder() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == nil || s.lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *s.lease.Spec.HolderIdentity
}

// asked returns the requests since the last call.
func (s *leaseServer) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.requests)
	s.requests = nil
	return all
}

func forbidden(verb string) error {
	return apierrors.NewForbidden(leaseResource, "mock-csi-test", &verbError{verb})
}

type verbError struct{ verb string }

func (e *verbError) Error() string { return "cannot " + e.verb }
