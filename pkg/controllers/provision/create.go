package provision

import (
	"maps"
	"slices"
	"sync"
	"time"

	snapv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/operations"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
)

// create is what this process remembers of making the volume of one claim. It is there while something has to
// be remembered. It is a value: who holds the claim's lock takes a copy, changes that, and puts it back.
type create struct {
	// claim is as it was at the last attempt: the work goes on with it when the claim is gone.
	claim *corev1.PersistentVolumeClaim
	proto protocol
	// calling says that a call is at work right now.
	calling bool
	// busySince is since when the driver is at work on an unanswered create, as far as its answers tell; zero when the
	// last one tells otherwise. A create that was taken up is taken for one until the driver has answered.
	busySince time.Time
	// lastFinal says that the last answer was a final error: then a stop makes no call whose final answer would not count.
	lastFinal bool
	// plan is frozen from the moment on that its operation is being recorded.
	plan *Plan
	// beginning is not nil while the operation is being recorded and no call was made.
	beginning *beginning
	// recorded says that a later process finds the operation.
	recorded bool
	// recovered is the operation that an earlier process left, nil for one of this process.
	recovered *operations.Operation
	// snapshot is the source as this attempt has read it; nil in later ones, for which it may be too old.
	snapshot *snapv1.VolumeSnapshot
	// stuckSaid is when the user was last told that the create cannot be finished.
	stuckSaid time.Time
	// slow holds back a request that cannot succeed as it is; nil if none.
	slow *slow
	// unsaved is the PersistentVolume that the API server has not taken yet, nil if none; volumeID is what the driver calls
	// its volume.
	unsaved  *corev1.PersistentVolume
	volumeID string
	// refusedSince is since when the API server has refused unsaved while nobody waits for it; zero when that is not so.
	refusedSince time.Time
	// saved is the name of the PersistentVolume that was saved, until the claim is seen bound or gone.
	saved string
	// classMissing says that the log tells that the claim's class is missing.
	classMissing bool
	// populator says that the claim's user was told that somebody else fills it.
	populator bool
}

// outstanding reports whether a volume may be made for the claim that no PersistentVolume stands for yet.
func (cr create) outstanding() bool { return cr.calling || cr.proto.unanswered || cr.unsaved != nil }

// volumeName returns the name of the volume, "" before there is a plan.
func (cr create) volumeName() string {
	if cr.plan == nil {
		return ""
	}
	return cr.plan.Request.GetName()
}

// slow is why a claim waits long: a driver called its request invalid, and only a change can help. The
// versions are those of the objects that the request was made from, empty when there was none.
type slow struct {
	until     time.Time
	claim     *corev1.PersistentVolumeClaim
	classUID  types.UID
	class     string
	vacName   string
	vac       string
	secretRef *corev1.SecretReference
	secret    string
}

// sameRequest reports whether two versions of a claim ask for the same volume.
func sameRequest(a, b *corev1.PersistentVolumeClaim) bool {
	return equality.Semantic.DeepEqual(a.Spec, b.Spec) && maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations)
}

// creates holds the create of each claim that has one. Safe for concurrent use.
type creates struct {
	mu       sync.Mutex
	byUID    map[types.UID]create
	bySource map[string]map[types.UID]bool // source.Key → claims with an outstanding create from it
}

func newCreates() *creates {
	return &creates{byUID: map[types.UID]create{}, bySource: map[string]map[types.UID]bool{}}
}

// get returns the create of a claim, and false when nothing is remembered of it.
func (c *creates) get(uid types.UID) (create, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cr, ok := c.byUID[uid]
	return cr, ok
}

// put remembers cr in place of what was remembered of its claim.
func (c *creates) put(cr create) {
	uid := cr.claim.UID
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unlist(uid)
	c.byUID[uid] = cr
	if key := source.Key(cr.claim); key != "" && cr.outstanding() {
		if c.bySource[key] == nil {
			c.bySource[key] = map[types.UID]bool{}
		}
		c.bySource[key][uid] = true
	}
}

// drop forgets the create of a claim.
func (c *creates) drop(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unlist(uid)
	delete(c.byUID, uid)
}

// unlist takes the claim out of the index of sources. mu is held.
func (c *creates) unlist(uid types.UID) {
	cr, ok := c.byUID[uid]
	if !ok {
		return
	}
	if key := source.Key(cr.claim); key != "" {
		delete(c.bySource[key], uid)
		if len(c.bySource[key]) == 0 {
			delete(c.bySource, key)
		}
	}
}

// usedBy returns the claims with an outstanding create from the source, sorted.
func (c *creates) usedBy(key string) []types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.bySource[key]))
}

// unsavedWith returns the name of the PersistentVolume to be of another claim than this, whose volume has the handle; "" if
// there is none.
func (c *creates) unsavedWith(handle string, claimUID types.UID) (pvName string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid, cr := range c.byUID {
		if uid != claimUID && cr.unsaved != nil && cr.volumeID == handle {
			return cr.unsaved.Name
		}
	}
	return ""
}

// where returns the claims whose create has the property, sorted.
func (c *creates) where(property func(create) bool) []types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	var uids []types.UID
	for uid, cr := range c.byUID {
		if property(cr) {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return uids
}
