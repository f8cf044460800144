package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// ErrNotGranted means that the service account lacks a right, as far as is known; no request was sent, or it was refused.
var ErrNotGranted = errors.New("the right is not granted")

const (
	// AccessInterval is how long a refusal is remembered, and how often a right that is missing is asked for again.
	AccessInterval = time.Minute
	// accessTimeout is the deadline of one SelfSubjectAccessReview, the wait for the client's rate limit included.
	accessTimeout = 5 * time.Second
	// accessFresh is how long the answer that a right is granted is not asked for again: a 403 in this time comes from
	// an admission plugin, which refuses single objects.
	accessFresh = 2 * time.Second
)

// Access remembers which verbs on one resource the API server refuses to this service account. The answer to a
// SelfSubjectAccessReview decides, because a 403 may also come from a quota, a webhook or an API server that is just
// starting. No rule is needed for that: every authenticated user may create such a review. Its methods may be called
// concurrently.
type Access struct {
	client    kubernetes.Interface
	resource  schema.GroupResource
	namespace string // empty: in all, or the resource has none

	asking sync.Mutex // one review at a time

	mu      sync.Mutex
	refused map[string]refusal   // verb → why it is not used; missing: it may be used
	granted map[string]time.Time // verb → when a review last said that it is granted
}

// refusal is why a verb is not used for now.
type refusal struct {
	cause error
	// denied says that a review has confirmed it. Then it lasts until another review says otherwise.
	denied bool
	// until is when a refusal that is not confirmed is forgotten.
	until time.Time
}

// NewAccess returns an Access that knows of no refusal. The client is used for reviews only.
func NewAccess(client kubernetes.Interface, resource schema.GroupResource) *Access {
	return &Access{client: client, resource: resource, refused: map[string]refusal{}, granted: map[string]time.Time{}}
}

// NewNamespacedAccess is NewAccess for the resource in one namespace.
func NewNamespacedAccess(client kubernetes.Interface, resource schema.GroupResource, namespace string) *Access {
	a := NewAccess(client, resource)
	a.namespace = namespace
	return a
}

// Ask asks the API server whether the verbs are granted. A review that fails changes nothing.
func (a *Access) Ask(ctx context.Context, verbs ...string) {
	a.asking.Lock()
	defer a.asking.Unlock()
	for _, verb := range verbs {
		a.review(ctx, verb, nil)
	}
}

// AskAgain asks for each verb that is refused.
func (a *Access) AskAgain(ctx context.Context) {
	a.mu.Lock()
	verbs := slices.Sorted(maps.Keys(a.refused))
	a.mu.Unlock()
	a.Ask(ctx, verbs...)
}

// Observe takes note of the error that a request with the verb has returned, nil for success. After a 403 it asks
// whether the verb is granted. It returns Refusal(verb).
func (a *Access) Observe(ctx context.Context, verb string, err error) error {
	if !apierrors.IsForbidden(err) {
		return a.Refusal(verb)
	}
	a.asking.Lock()
	defer a.asking.Unlock()
	if refused := a.Refusal(verb); refused != nil || a.justGranted(verb) {
		return refused // another request has asked
	}
	a.review(ctx, verb, err)
	return a.Refusal(verb)
}

// Do sends a request with the verb, unless that is refused. The error is Refusal(verb) or what request returned.
func (a *Access) Do(ctx context.Context, verb string, request func() error) error {
	if refused := a.Refusal(verb); refused != nil {
		return refused
	}
	err := request()
	if refused := a.Observe(ctx, verb, err); apierrors.IsForbidden(err) && refused != nil {
		return refused
	}
	return err
}

// Refusal returns an error that wraps ErrNotGranted and names the rule to add if the verb is refused, and nil if it may
// be used.
func (a *Access) Refusal(verb string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, ok := a.refused[verb]
	if !ok || (!r.denied && !time.Now().Before(r.until)) {
		return nil
	}
	return fmt.Errorf("%w, add the rule %s: %w", ErrNotGranted, a.rule(verb), r.cause)
}

// Denied reports whether a review has said that the verb is not granted.
func (a *Access) Denied(verb string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.refused[verb].denied
}

func (a *Access) justGranted(verb string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, ok := a.granted[verb]
	return ok && time.Since(at) < accessFresh
}

// rule is what a ClusterRole, or the Role of a namespace, lacks, as in a manifest.
func (a *Access) rule(verb string) string {
	rule := fmt.Sprintf(`{apiGroups: [%q], resources: [%s], verbs: [%s]}`, a.resource.Group, a.resource.Resource, verb)
	if a.namespace != "" {
		rule += " to a Role in namespace " + a.namespace
	}
	return rule
}

// review asks for one verb; forbidden is the 403 that is the reason to ask, nil for none. asking is held.
func (a *Access) review(ctx context.Context, verb string, forbidden error) {
	reviewing, cancel := context.WithTimeout(ctx, accessTimeout)
	defer cancel()
	answer, err := a.client.AuthorizationV1().SelfSubjectAccessReviews().Create(reviewing, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: a.namespace, Group: a.resource.Group, Resource: a.resource.Resource, Verb: verb,
		}},
	}, metav1.CreateOptions{})
	if err == nil && !answer.Status.Allowed && answer.Status.EvaluationError != "" {
		err = errors.New(answer.Status.EvaluationError) // an authorizer did not work, so nobody knows
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err == nil && answer.Status.Allowed:
		delete(a.refused, verb)
		a.granted[verb] = time.Now()
	case err == nil:
		cause := forbidden
		if cause == nil {
			cause = fmt.Errorf("the service account cannot %s resource %q in API group %q", verb, a.resource.Resource, a.resource.Group)
		}
		if known, ok := a.refused[verb]; ok && forbidden == nil {
			cause = known.cause
		}
		a.refused[verb] = refusal{cause: cause, denied: true}
	case forbidden != nil && !a.refused[verb].denied:
		a.refused[verb] = refusal{cause: forbidden, until: time.Now().Add(AccessInterval)}
		fallthrough
	default:
		klog.FromContext(ctx).V(2).Info("Cannot ask whether a right is granted", "verb", verb, "resource", a.resource.String(), "err", err)
	}
}
