package operations

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// errAway is what a client returns when the API server does not answer.
var errAway = errors.New("connection refused")

// fault is what goes wrong with one request; zero for nothing. done says that the API server has done what it was asked
// for all the same.
type fault struct {
	err  error
	done bool
	// before is called before the request is served, as if another client had been faster.
	before func()
}

// api is an API server with Leases only: it checks UID and resourceVersion as the real one does.
type api struct {
	coordinationclient.LeaseInterface // all other methods panic

	mu       sync.Mutex
	objects  map[string]*coordinationv1.Lease
	version  int
	uids     int
	requests []string // "verb name"
	latency  time.Duration
	running  int
	most     int // requests at once
	// fail returns what goes wrong; nil for nothing.
	fail func(verb, name string) fault
}

func newAPI() *api { return &api{objects: map[string]*coordinationv1.Lease{}} }

func (a *api) serve(ctx context.Context, verb, name string, do func() error) error {
	a.mu.Lock()
	a.requests = append(a.requests, strings.TrimSpace(verb+" "+name))
	a.running++
	a.most = max(a.most, a.running)
	latency, fail := a.latency, a.fail
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.running--
		a.mu.Unlock()
	}()
	var f fault
	if fail != nil {
		f = fail(verb, name)
	}
	if f.before != nil {
		f.before()
	}
	if latency > 0 {
		select {
		case <-time.After(latency):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if f.err != nil && !f.done {
		return f.err
	}
	if err := do(); err != nil {
		return err
	}
	return f.err
}

func (a *api) Get(ctx context.Context, name string, _ metav1.GetOptions) (got *coordinationv1.Lease, err error) {
	err = a.serve(ctx, "get", name, func() error {
		if a.objects[name] == nil {
			return apierrors.NewNotFound(leases, name)
		}
		got = a.objects[name].DeepCopy()
		return nil
	})
	return got, err
}

func (a *api) List(ctx context.Context, opts metav1.ListOptions) (got *coordinationv1.LeaseList, err error) {
	err = a.serve(ctx, "list", "", func() error {
		selector, err := labels.Parse(opts.LabelSelector)
		if err != nil {
			return err
		}
		got = &coordinationv1.LeaseList{}
		names := slices.Sorted(maps.Keys(a.objects))
		from, _ := strconv.Atoi(opts.Continue)
		for i := from; i < len(names); i++ {
			if opts.Limit > 0 && int64(len(got.Items)) == opts.Limit {
				got.Continue = strconv.Itoa(i)
				break
			}
			if o := a.objects[names[i]]; selector.Matches(labels.Set(o.Labels)) {
				got.Items = append(got.Items, *o.DeepCopy())
			}
		}
		return nil
	})
	return got, err
}

func (a *api) Create(ctx context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions) (got *coordinationv1.Lease, err error) {
	err = a.serve(ctx, "create", lease.Name, func() error {
		if a.objects[lease.Name] != nil {
			return apierrors.NewAlreadyExists(leases, lease.Name)
		}
		a.put(lease)
		got = a.objects[lease.Name].DeepCopy()
		return nil
	})
	return got, err
}

func (a *api) Update(ctx context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (got *coordinationv1.Lease, err error) {
	err = a.serve(ctx, "update", lease.Name, func() error {
		live := a.objects[lease.Name]
		switch {
		case lease.UID == "" || lease.ResourceVersion == "":
			return apierrors.NewBadRequest("an update without UID and resourceVersion may create")
		case live == nil:
			return apierrors.NewNotFound(leases, lease.Name)
		case live.UID != lease.UID || live.ResourceVersion != lease.ResourceVersion:
			return apierrors.NewConflict(leases, lease.Name, errors.New("the object has been modified"))
		}
		a.put(lease)
		got = a.objects[lease.Name].DeepCopy()
		return nil
	})
	return got, err
}

// put stores the Lease. mu is held.
func (a *api) put(lease *coordinationv1.Lease) {
	lease = lease.DeepCopy()
	a.version++
	lease.ResourceVersion = strconv.Itoa(a.version)
	if lease.UID == "" {
		a.uids++
		lease.UID = types.UID(fmt.Sprintf("%08d-0000-0000-0000-000000000000", a.uids))
	}
	a.objects[lease.Name] = lease
}

// change lets a person, or another process, change a Lease.
func (a *api) change(name string, change func(*coordinationv1.Lease)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	lease := a.objects[name].DeepCopy()
	change(lease)
	a.put(lease)
}

func (a *api) remove(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.objects, name)
}

// says returns what operations the Leases say: name → claim UID, "" for a free one, "?" for one that cannot be read.
func (a *api) says() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	said := map[string]string{}
	for name, lease := range a.objects {
		text := lease.Annotations[wellknown.AnnOperation]
		if text == "" {
			said[name] = ""
			continue
		}
		op, err := Decode(text, lease.UID)
		if err != nil {
			said[name] = "?"
			continue
		}
		said[name] = string(op.Claim.UID)
	}
	return said
}

// counts returns how many requests of each verb were sent since the last call.
func (a *api) counts() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := map[string]int{}
	for _, r := range a.requests {
		verb, _, _ := strings.Cut(r, " ")
		n[verb]++
	}
	a.requests = nil
	return n
}

func (a *api) setFail(fail func(verb, name string) fault) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fail = fail
}

// rights are those of a service account: verb → whether it is denied.
type rights struct {
	mu     sync.Mutex
	denied map[string]bool
	asked  int
	known  map[string]bool // what was learnt from reviews
}

func (r *rights) Observe(_ context.Context, verb string, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if r.known == nil {
		r.known = map[string]bool{}
	}
	if r.known[verb] = r.denied[verb]; r.known[verb] {
		return fmt.Errorf("add the verb %s: %w", verb, err)
	}
	return nil
}

func (r *rights) Denied(verb string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[verb]
}

func (r *rights) AskAgain(context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for verb := range r.known {
		r.known[verb] = r.denied[verb]
	}
}
