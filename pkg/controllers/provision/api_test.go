package provision

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
)

// apiServer is a small API server for tests in which time must stand still: it holds objects that are being deleted
// for their finalizers, refuses new finalizers on them, checks UIDs and resource versions, and is the Cache and the
// Events of a Controller, too. Everything else is tested against a real one in test/integration.
type apiServer struct {
	mu       sync.Mutex
	version  int
	objects  map[string]metav1.Object // "<resource>/<namespace>/<name>" → as stored
	cached   map[string]metav1.Object // the same as the caches show it
	lagging  bool                     // the caches stand still
	old      bool                     // they have not caught up since the process began its work
	handle   func(*corev1.PersistentVolume) string
	behind   []change // what they have not shown yet
	untold   []change // what no handler knows yet
	writes   []string // "<verb> <resource> <name>", in order
	deletes  int      // how many DELETE requests there were
	fail     func(verb, resource, name string) error
	denied   map[string]bool // verb → the rights do not grant it on persistentvolumes
	handlers handlers

	telling sync.Mutex // handlers are called one at a time, in order
}

type change struct {
	key      string
	old, now metav1.Object
}

type handlers struct {
	claim      []cluster.Handler[*corev1.PersistentVolumeClaim]
	pv         []cluster.Handler[*corev1.PersistentVolume]
	class      []cluster.Handler[*storagev1.StorageClass]
	attachment []cluster.Handler[*storagev1.VolumeAttachment]
}

func newAPIServer() *apiServer {
	return &apiServer{objects: map[string]metav1.Object{}, cached: map[string]metav1.Object{}}
}

// client returns a client that works until dead says so.
func (a *apiServer) client(dead func() bool) *fake.Clientset {
	client := &fake.Clientset{}
	client.AddReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if dead() {
			return true, nil, errors.New("the process is dead")
		}
		object, err := a.react(action)
		return true, object, err
	})
	return client
}

func (a *apiServer) react(action clienttesting.Action) (runtime.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	verb, resource := action.GetVerb(), action.GetResource().Resource
	name := nameOf(action)
	if verb != "get" && verb != "list" && resource != "selfsubjectaccessreviews" { // which stores nothing
		a.writes = append(a.writes, fmt.Sprintf("%s %s %s", verb, resource, name))
	}
	if verb == "delete" {
		a.deletes++
	}
	if a.fail != nil {
		if err := a.fail(verb, resource, name); err != nil {
			return nil, err
		}
	}
	if resource == "persistentvolumes" && a.denied[verb] {
		return nil, apierrors.NewForbidden(action.GetResource().GroupResource(), name, fmt.Errorf("cannot %s resource %q", verb, resource))
	}
	key := resource + "/" + action.GetNamespace() + "/" + name
	switch action := action.(type) {
	case clienttesting.CreateAction: // also an update
		object, ok := action.GetObject().DeepCopyObject().(metav1.Object)
		if !ok {
			return nil, fmt.Errorf("%T is no object", action.GetObject())
		}
		if review, ok := object.(*authorizationv1.SelfSubjectAccessReview); ok {
			about := review.Spec.ResourceAttributes
			review.Status.Allowed = !a.denied[about.Verb]
			if about.Resource == "leases" {
				review.Status.Allowed = a.fail == nil || !apierrors.IsForbidden(a.fail(about.Verb, about.Resource, ""))
			}
			return review, nil
		}
		if verb == "create" {
			return a.create(key, object)
		}
		return a.update(key, object)
	case clienttesting.PatchAction:
		return a.patch(key, action.GetPatch())
	case clienttesting.DeleteAction:
		return nil, a.delete(key, action.GetDeleteOptions().Preconditions)
	}
	if verb == "list" {
		return a.list(action), nil
	}
	return a.get(key)
}

// list returns the PersistentVolumes that the field selector matches, or all VolumeAttachments or Leases.
func (a *apiServer) list(action clienttesting.Action) runtime.Object {
	if action.GetResource().Resource == "leases" {
		list := &coordinationv1.LeaseList{}
		for _, key := range slices.Sorted(maps.Keys(a.objects)) {
			if lease, ok := a.objects[key].(*coordinationv1.Lease); ok {
				list.Items = append(list.Items, *lease.DeepCopy())
			}
		}
		return list
	}
	if action.GetResource().Resource == "volumeattachments" {
		list := &storagev1.VolumeAttachmentList{}
		for _, key := range slices.Sorted(maps.Keys(a.objects)) {
			if attachment, ok := a.objects[key].(*storagev1.VolumeAttachment); ok {
				list.Items = append(list.Items, *attachment.DeepCopy())
			}
		}
		return list
	}
	selector := fields.Everything()
	if action, ok := action.(clienttesting.ListAction); ok {
		selector = action.GetListRestrictions().Fields
	}
	list := &corev1.PersistentVolumeList{}
	for _, key := range slices.Sorted(maps.Keys(a.objects)) {
		if pv, ok := a.objects[key].(*corev1.PersistentVolume); ok && selector.Matches(fields.Set{metav1.ObjectNameField: pv.Name}) {
			list.Items = append(list.Items, *pv.DeepCopy())
		}
	}
	return list
}

func nameOf(action clienttesting.Action) string {
	switch action := action.(type) {
	case interface{ GetName() string }:
		return action.GetName()
	case clienttesting.CreateAction:
		if object, ok := action.GetObject().(metav1.Object); ok {
			return object.GetName()
		}
	}
	return ""
}

func resourceOf(key string) schema.GroupResource {
	var resource string
	for i := range key {
		if key[i] == '/' {
			resource = key[:i]
			break
		}
	}
	return schema.GroupResource{Resource: resource}
}

func (a *apiServer) get(key string) (runtime.Object, error) {
	object, ok := a.objects[key]
	if !ok {
		return nil, apierrors.NewNotFound(resourceOf(key), key)
	}
	return clone(object).(runtime.Object), nil //nolint:errcheck,forcetypeassert // both interfaces are of one object
}

func clone(object metav1.Object) metav1.Object {
	return object.(runtime.Object).DeepCopyObject().(metav1.Object) //nolint:errcheck,forcetypeassert // API types are both
}

func (a *apiServer) create(key string, object metav1.Object) (runtime.Object, error) {
	if a.objects[key] != nil {
		return nil, apierrors.NewAlreadyExists(resourceOf(key), key)
	}
	object.SetNamespace(strings.Split(key, "/")[1])
	if object.GetUID() == "" {
		object.SetUID(types.UID(fmt.Sprintf("uid-%d", a.version+1)))
	}
	if created := object.GetCreationTimestamp(); created.IsZero() {
		object.SetCreationTimestamp(metav1.Now().Rfc3339Copy())
	}
	a.store(key, object)
	return a.get(key)
}

func (a *apiServer) update(key string, object metav1.Object) (runtime.Object, error) {
	old, ok := a.objects[key]
	switch {
	case !ok:
		return nil, apierrors.NewNotFound(resourceOf(key), key)
	case object.GetResourceVersion() != "" && object.GetResourceVersion() != old.GetResourceVersion():
		return nil, apierrors.NewConflict(resourceOf(key), key, errors.New("the object has been modified"))
	case old.GetDeletionTimestamp() != nil && slices.ContainsFunc(object.GetFinalizers(), func(f string) bool { return !slices.Contains(old.GetFinalizers(), f) }):
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Object"}, key, nil)
	}
	object.SetDeletionTimestamp(old.GetDeletionTimestamp())
	a.store(key, object)
	return object.(runtime.Object), nil //nolint:errcheck,forcetypeassert // API types are both
}

// patch knows the patch of one finalizer.
func (a *apiServer) patch(key string, body []byte) (runtime.Object, error) {
	stored, ok := a.objects[key]
	if !ok {
		return nil, apierrors.NewNotFound(resourceOf(key), key)
	}
	var patch struct {
		Metadata struct {
			UID     types.UID `json:"uid"`
			Version string    `json:"resourceVersion"`
			Add     []string  `json:"finalizers"`
			Remove  []string  `json:"$deleteFromPrimitiveList/finalizers"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(body, &patch); err != nil {
		return nil, err
	}
	object := clone(stored)
	switch {
	case patch.Metadata.UID != object.GetUID():
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Object"}, key, nil)
	case patch.Metadata.Version != "" && patch.Metadata.Version != object.GetResourceVersion():
		return nil, apierrors.NewConflict(resourceOf(key), key, errors.New("the object has been modified"))
	}
	finalizers := slices.DeleteFunc(object.GetFinalizers(), func(f string) bool { return slices.Contains(patch.Metadata.Remove, f) })
	object.SetFinalizers(append(finalizers, patch.Metadata.Add...))
	a.store(key, object)
	return object.(runtime.Object), nil //nolint:errcheck,forcetypeassert // API types are both
}

func (a *apiServer) delete(key string, preconditions *metav1.Preconditions) error {
	stored, ok := a.objects[key]
	switch {
	case !ok:
		return apierrors.NewNotFound(resourceOf(key), key)
	case preconditions != nil && preconditions.UID != nil && *preconditions.UID != stored.GetUID():
		return apierrors.NewConflict(resourceOf(key), key, errors.New("another UID"))
	}
	object := clone(stored)
	if object.GetDeletionTimestamp() == nil {
		now := metav1.NewTime(time.Now())
		object.SetDeletionTimestamp(&now)
	}
	a.store(key, object)
	return nil
}

// store puts the object, or takes it away when nothing holds it any more, and tells the caches.
func (a *apiServer) store(key string, object metav1.Object) {
	a.version++
	object.SetResourceVersion(strconv.Itoa(a.version))
	old, now := a.objects[key], object
	if object.GetDeletionTimestamp() != nil && len(object.GetFinalizers()) == 0 {
		delete(a.objects, key)
		now = nil
	} else {
		a.objects[key] = object
	}
	a.behind = append(a.behind, change{key: key, old: old, now: now})
	if !a.lagging {
		a.catchUp()
	}
}

// catchUp shows the caches what they have not seen. mu is held.
func (a *apiServer) catchUp() {
	for _, c := range a.behind {
		if c.now == nil {
			delete(a.cached, c.key)
		} else {
			a.cached[c.key] = c.now
		}
		a.untold = append(a.untold, c)
		go a.tell() // a handler asks the cache
	}
	a.behind = nil
}

// tell tells the handlers of the oldest change that they do not know of.
func (a *apiServer) tell() {
	a.telling.Lock()
	defer a.telling.Unlock()
	a.mu.Lock()
	c, to := a.untold[0], a.handlers
	a.untold = a.untold[1:]
	a.mu.Unlock()
	handle(to.claim, c)
	handle(to.pv, c)
	handle(to.class, c)
	handle(to.attachment, c)
}

func handle[T metav1.Object](handlers []cluster.Handler[T], c change) {
	old, hadOld := c.old.(T)
	now, hasNow := c.now.(T)
	if !hadOld && !hasNow {
		return
	}
	for _, handler := range handlers {
		handler(old, now)
	}
}

// lag makes the caches stand still, or catch up.
func (a *apiServer) lag(standStill bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lagging = standStill
	if !standStill {
		a.catchUp()
	}
}

func (a *apiServer) failing(fail func(verb, resource, name string) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fail = fail
}

// detach forgets the handlers, as the end of a process does.
func (a *apiServer) detach() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handlers = handlers{}
}

// wrote counts the writes that begin with prefix.
func (a *apiServer) wrote(prefix string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, line := range a.writes {
		if strings.HasPrefix(line, prefix) {
			n++
		}
	}
	return n
}

// register is how Events hand over what is there.
func register[T metav1.Object](a *apiServer, into *[]cluster.Handler[T], handler cluster.Handler[T]) (func() bool, error) {
	a.mu.Lock()
	*into = append(*into, handler)
	var there []T
	for _, key := range slices.Sorted(maps.Keys(a.cached)) {
		if object, ok := a.cached[key].(T); ok {
			there = append(there, object)
		}
	}
	a.mu.Unlock()
	var none T
	for _, object := range there {
		handler(none, object)
	}
	return func() bool { return true }, nil
}

func (a *apiServer) OnClaim(h cluster.Handler[*corev1.PersistentVolumeClaim]) (func() bool, error) {
	return register(a, &a.handlers.claim, h)
}

func (a *apiServer) OnPV(h cluster.Handler[*corev1.PersistentVolume]) (func() bool, error) {
	return register(a, &a.handlers.pv, h)
}

func (a *apiServer) OnClass(h cluster.Handler[*storagev1.StorageClass]) (func() bool, error) {
	return register(a, &a.handlers.class, h)
}

func (a *apiServer) OnAttachment(h cluster.Handler[*storagev1.VolumeAttachment]) (func() bool, error) {
	return register(a, &a.handlers.attachment, h)
}

// cachedAs returns the cached objects of a type that have the property, sorted by key.
func cachedAs[T metav1.Object](a *apiServer, property func(T) bool) []T {
	a.mu.Lock()
	defer a.mu.Unlock()
	var found []T
	for _, key := range slices.Sorted(maps.Keys(a.cached)) {
		if object, ok := a.cached[key].(T); ok && property(object) {
			found = append(found, object)
		}
	}
	return found
}

func first[T any](list []T) T {
	var none T
	if len(list) == 0 {
		return none
	}
	return list[0]
}

func (a *apiServer) ClaimByUID(uid types.UID) *corev1.PersistentVolumeClaim {
	return first(cachedAs(a, func(c *corev1.PersistentVolumeClaim) bool { return c.UID == uid }))
}

func (a *apiServer) Claim(namespace, name string) *corev1.PersistentVolumeClaim {
	return first(cachedAs(a, func(c *corev1.PersistentVolumeClaim) bool { return c.Namespace == namespace && c.Name == name }))
}

func (a *apiServer) PV(name string) *corev1.PersistentVolume {
	return first(cachedAs(a, func(pv *corev1.PersistentVolume) bool { return pv.Name == name }))
}

func (a *apiServer) PVsByHandle(handle string) []*corev1.PersistentVolume {
	return cachedAs(a, func(pv *corev1.PersistentVolume) bool {
		return a.handle != nil && a.handle(pv) == handle
	})
}

func (a *apiServer) Class(name string) *storagev1.StorageClass {
	return first(cachedAs(a, func(class *storagev1.StorageClass) bool { return class.Name == name }))
}

func (a *apiServer) ClaimsBySource(key string) []*corev1.PersistentVolumeClaim {
	return cachedAs(a, func(c *corev1.PersistentVolumeClaim) bool { return source.Key(c) == key })
}

func (a *apiServer) AttachmentsOf(pvName string) []*storagev1.VolumeAttachment {
	return cachedAs(a, func(va *storagev1.VolumeAttachment) bool {
		return va.Spec.Source.PersistentVolumeName != nil && *va.Spec.Source.PersistentVolumeName == pvName
	})
}

func (a *apiServer) Grants(string) ([]*gatewayv1beta1.ReferenceGrant, error) { return nil, nil }

func (a *apiServer) UnboundClaims() []*corev1.PersistentVolumeClaim {
	return cachedAs(a, func(c *corev1.PersistentVolumeClaim) bool { return c.Spec.VolumeName == "" })
}

// CaughtUp is false while the caches may show what was so before the process began its work.
func (a *apiServer) CaughtUp(cluster.Resource) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.old
}

// fallBehind makes the caches stand still as they do for a standby that cannot watch; those of the next process show no more
// until catchUpAtLast.
func (a *apiServer) fallBehind() {
	a.lag(true)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.old = true
}

// catchUpAtLast shows the caches what they have missed.
func (a *apiServer) catchUpAtLast() {
	a.lag(false)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.old = false
}
