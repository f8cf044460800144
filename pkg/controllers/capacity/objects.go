package capacity

import (
	"slices"
	"strings"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
)

// pendingFor is how long an own write counts while the watch does not show it. It is far longer than a watch
// ever lags, and ends the belief in an object that somebody took from us before we saw it.
const pendingFor = 3 * time.Minute

// object is one managed CSIStorageCapacity object. The API objects are never changed.
type object struct {
	// last is the newest version known: the cache's, or what an own write returned.
	last *storagev1.CSIStorageCapacity
	// observed is the version that the cache showed last; nil until it shows an own create.
	observed *storagev1.CSIStorageCapacity
	// until is when an own write in last stops to count; meaningless while last is what was observed.
	until time.Time
	// deleting: a DELETE is under way or done, and the watch has not shown it yet.
	deleting bool
}

func (o *object) pending() bool { return o.last != o.observed }

func (o *object) terminating() bool { return o.last.DeletionTimestamp != nil }

// deletable reports whether an object that is not wanted still needs a DELETE.
func (o *object) deletable() bool { return !o.deleting && !o.terminating() && o.observed != nil }

// survivor returns the object that stands for a desired pair, nil when there is none. Of duplicates it is the
// oldest, then the first by name, so that two observers delete the same ones.
func (it *item) survivor() *object {
	if !it.desired {
		return nil
	}
	var first *object
	for _, o := range it.objects {
		if !o.deleting && !o.terminating() && (first == nil || older(o.last, first.last)) {
			first = o
		}
	}
	return first
}

func older(a, b *storagev1.CSIStorageCapacity) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return strings.Compare(a.Name, b.Name) < 0
}

func (it *item) find(uid types.UID) *object {
	for _, o := range it.objects {
		if o.last.UID == uid {
			return o
		}
	}
	return nil
}

func (b *book) add(it *item, o *object) {
	it.objects = append(it.objects, o)
	b.byUID[o.last.UID] = it
}

func (b *book) remove(it *item, o *object) {
	it.objects = slices.DeleteFunc(it.objects, func(other *object) bool { return other == o })
	delete(b.byUID, o.last.UID)
}

// observe takes in a managed object as the cache shows it.
func (b *book) observe(observed *storagev1.CSIStorageCapacity) {
	key := keyOf(observed)
	if it, known := b.byUID[observed.UID]; known {
		if it.key == key {
			o := it.find(observed.UID)
			// A resync shows again what was known before our own write, which still stands.
			if o.observed == nil || o.observed.ResourceVersion != observed.ResourceVersion {
				o.last = observed
				o.observed = observed
			}
			b.settle(it)
			return
		}
		b.forget(observed.UID)
	}
	it := b.item(key)
	b.add(it, &object{last: observed, observed: observed})
	b.settle(it)
}

// forget takes in that an object is gone or not managed any more. A pair that lost its object gets a turn.
func (b *book) forget(uid types.UID) {
	it, known := b.byUID[uid]
	if !known {
		return
	}
	o := it.find(uid)
	lost := it.survivor() == o
	b.remove(it, o)
	b.settle(it)
	if lost && it.desired {
		b.want(it)
	}
}

// view is what a worker reads of one pair.
type view struct {
	key     Key
	desired bool
	// object stands for the pair; nil when there is none, or the pair is not desired.
	object *storagev1.CSIStorageCapacity
	// surplus are the objects to delete.
	surplus []*storagev1.CSIStorageCapacity
}

// view returns the pair as it is now. The caller deletes the surplus or calls kept for it: until then nobody
// else will.
func (b *book) view(key Key, now time.Time) view {
	v := view{key: key}
	it, there := b.items[key]
	if !there {
		return v
	}
	for _, o := range slices.Clone(it.objects) {
		if o.pending() && now.After(o.until) {
			b.unbelieve(it, o)
		}
	}
	v.desired = it.desired
	survivor := it.survivor()
	if survivor != nil {
		v.object = survivor.last
	}
	for _, o := range it.objects {
		if o != survivor && o.deletable() {
			o.deleting = true
			v.surplus = append(v.surplus, o.last)
		}
	}
	b.settle(it)
	return v
}

// kept takes in that an object of a view's surplus could not be deleted. That gives no new turn: the one at
// hand ends with the error, and its back-off brings the next.
func (b *book) kept(uid types.UID) {
	if it, known := b.byUID[uid]; known {
		it.find(uid).deleting = false
		b.count(it)
	}
}

// created takes in the answer to an own create, unless the watch was faster or the pair is not desired any
// more: then the watch will show an obsolete object.
func (b *book) created(key Key, answer *storagev1.CSIStorageCapacity, now time.Time) {
	it, there := b.items[key]
	if _, known := b.byUID[answer.UID]; known || !there || !it.desired {
		return
	}
	b.add(it, &object{last: answer, until: now.Add(pendingFor)})
	b.settle(it)
}

// updated takes in the answer to an own update of base, unless the watch has shown something newer.
func (b *book) updated(base, answer *storagev1.CSIStorageCapacity, now time.Time) {
	it, known := b.byUID[answer.UID]
	if !known {
		return
	}
	if o := it.find(answer.UID); o.last.ResourceVersion == base.ResourceVersion {
		o.last = answer
		o.until = now.Add(pendingFor)
		b.settle(it)
	}
}

// refused takes in that the server did not know the version of an object that we wrote to: what an own write
// returned is not the truth any more.
func (b *book) refused(uid types.UID) {
	if it, known := b.byUID[uid]; known {
		if o := it.find(uid); o.pending() {
			b.unbelieve(it, o)
		}
		b.settle(it)
	}
}

// unbelieve goes back to what the cache shows of an object.
func (b *book) unbelieve(it *item, o *object) {
	if o.observed == nil {
		b.remove(it, o)
		return
	}
	o.last = o.observed
}
