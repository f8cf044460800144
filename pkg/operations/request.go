package operations

import (
	"context"
	"maps"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// requestTimeout is the deadline of one request.
const requestTimeout = 10 * time.Second

// verbs are the rights that the actions need.
var verbs = map[action]string{read: "get", makeFree: "create", write: "update", renew: "update", empty: "update"}

// request is one request for a slot, with what is needed from it while mu is not held.
type request struct {
	action action
	number int
	lease  *coordinationv1.Lease
	op     *Operation
	text   string // op for a Lease with the UID longUID
	found  string // the text to write in place of op
}

// send sends the request and asks for rights after a 403.
func (s *Store) send(ctx context.Context, r request) answer {
	a := answer{action: r.action, op: r.op, began: time.Now()}
	requesting, cancel := context.WithTimeout(ctx, requestTimeout)
	a.lease, a.err = s.request(requesting, r, a.began)
	cancel()
	if a.err == nil && r.op != nil {
		a.text = textOf(r, a.lease.UID)
	}
	if a.err == nil {
		a.ours = s.reader.owns(a.lease)
	} else {
		a.lease = nil
		s.observe(ctx, verbs[r.action], a.err)
	}
	a.ended = time.Now()
	return a
}

func (s *Store) request(ctx context.Context, r request, now time.Time) (*coordinationv1.Lease, error) {
	switch r.action {
	case idle:
	case read:
		return s.cfg.Leases.Get(ctx, s.reader.of(r.number), metav1.GetOptions{})
	case makeFree:
		return s.cfg.Leases.Create(ctx, s.fill(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: s.reader.of(r.number)}}, "", now), metav1.CreateOptions{})
	case write, renew, empty:
	}
	lease, text := r.lease.DeepCopy(), ""
	lease.ManagedFields = nil // the API server keeps its own
	if r.action != empty {
		text = textOf(r, lease.UID)
	}
	if r.action == renew {
		lease.Spec.RenewTime = &metav1.MicroTime{Time: now}
		return s.cfg.Leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	s.fill(lease, text, now)
	if r.action == empty {
		lease.Spec.HolderIdentity = new("")
	}
	return s.cfg.Leases.Update(ctx, lease, metav1.UpdateOptions{})
}

// textOf returns what the Lease with that UID is to say.
func textOf(r request, lease types.UID) string {
	if r.found != "" {
		return r.found
	}
	return strings.Replace(r.text, string(longUID), string(lease), 1) // it comes before all that users choose
}

// fill makes the Lease ours, with that text; "" for none.
func (s *Store) fill(lease *coordinationv1.Lease, text string, now time.Time) *coordinationv1.Lease {
	if lease.Labels == nil {
		lease.Labels = map[string]string{}
	}
	maps.Copy(lease.Labels, s.cfg.Labels)
	maps.Copy(lease.Labels, s.reader.labels())
	delete(lease.Annotations, wellknown.AnnForgetOperation)
	delete(lease.Annotations, wellknown.AnnOperation)
	if text != "" {
		if lease.Annotations == nil {
			lease.Annotations = map[string]string{}
		}
		lease.Annotations[wellknown.AnnOperation] = text
	}
	stamp := &metav1.MicroTime{Time: now}
	lease.Spec.HolderIdentity, lease.Spec.AcquireTime, lease.Spec.RenewTime = new(s.cfg.Identity), stamp, stamp
	lease.Spec.LeaseDurationSeconds = new(int32(s.cfg.Duration / time.Second)) //nolint:gosec // minutes
	return lease
}

// observe takes note of a 403. When the right is not granted, what waits goes on without protection.
func (s *Store) observe(ctx context.Context, verb string, err error) {
	if !apierrors.IsForbidden(err) {
		return
	}
	refused := s.cfg.Rights.Observe(ctx, verb, err)
	if refused == nil || !s.cfg.Rights.Denied(verb) {
		return
	}
	s.mu.Lock()
	defer s.unlock()
	if s.denied != nil {
		return
	}
	klog.FromContext(ctx).Error(refused, "Operations cannot be recorded: a volume may be left behind if this process is killed while one is being made")
	s.denied, s.lookAt = refused, time.Now().Add(askAgain)
	s.tellReady()
	for _, e := range s.entries {
		if e.status.State == Waiting && (e.slot == nil || e.slot.found == "") {
			s.drop(e)
			s.unprotect(e, "denied", refused)
			s.changed(e.op.Claim.UID)
		}
	}
}
