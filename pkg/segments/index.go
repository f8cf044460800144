package segments

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/singleflight"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// Config describes an Index. All fields are required.
type Config struct {
	// Driver is the name of the CSI driver.
	Driver string
	// Client gets, lists and watches CSINodes.
	Client kubernetes.Interface
	// Metadata gets, lists and watches Nodes, of which only labels are of interest.
	Metadata metadata.Interface
}

// Index is the live list of a driver's segments, shared by everything that asks where nodes are. Its methods may be
// called concurrently, also before Run.
type Index struct {
	cfg Config
	// wake is signalled when segments changed, grow when the driver registered a key whose labels are not read yet.
	wake, grow chan struct{}
	// csiNodesRead is closed when CSINodes are known: only then it is known which labels of Nodes to read.
	csiNodesRead chan struct{}
	// lookups carries questions to the API server; ended is closed when nobody answers any more.
	lookups chan lookup
	ended   chan struct{}

	// telling is held while handlers are called; it guards handlers and is taken before mu.
	telling  sync.Mutex
	handlers []func(added, removed []topology.Segment)

	asking     singleflight.Group // looks at the API server, by node
	expansions topology.Expansions

	// mu guards what follows. It is never held during a call to the outside.
	mu    sync.Mutex
	table *table
	// nodesSynced and csiNodesSynced are set with the first list of each. told is set after the first round of calls.
	nodesSynced, csiNodesSynced, told bool
	// watched are the label keys that Nodes are watched for, read those that the last list brought.
	watched, read map[string]bool
	// failed holds the error of the last request for a resource, if it failed.
	failed map[string]error
}

// New assembles an index; nothing is watched before Run.
func New(cfg Config) (*Index, error) {
	if cfg.Driver == "" || cfg.Client == nil || cfg.Metadata == nil {
		return nil, errors.New("segments: Driver, Client and Metadata are required")
	}
	return &Index{
		cfg:          cfg,
		wake:         make(chan struct{}, 1),
		grow:         make(chan struct{}, 1),
		csiNodesRead: make(chan struct{}),
		lookups:      make(chan lookup),
		ended:        make(chan struct{}),
		table:        newTable(),
		watched:      map[string]bool{},
		failed:       map[string]error{},
	}, nil
}

// HasSynced reports whether everything that was there at the start is known and every handler that was added by
// then has been told. It never turns false again.
func (x *Index) HasSynced() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.told
}

// Segments returns the segments that at least one node has, sorted, in a new slice. A driver that registered
// without topology keys has the segment without pairs.
func (x *Index) Segments() []topology.Segment {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.table.list()
}

// AddHandler has changed called with each change of Segments, after the change: both lists are sorted, one
// of them is not empty, and calls do not overlap. Its first call brings all segments as added: at once, before
// AddHandler returns, when HasSynced is true, and else before it turns true. changed must not block, and must
// not call AddHandler. A handler stays for good; of a change that it panics for it is not told again.
func (x *Index) AddHandler(changed func(added, removed []topology.Segment)) {
	x.telling.Lock()
	defer x.telling.Unlock()
	all := x.tellUntold()
	x.handlers = append(x.handlers, changed)
	if len(all) > 0 {
		guard(func() { changed(all, nil) })
	}
}

// tellUntold tells the handlers what they have not been told yet, and returns all segments; none before everything is
// known. telling is held.
func (x *Index) tellUntold() (all []topology.Segment) {
	var added, removed []topology.Segment
	x.locked(func() {
		if x.told {
			added, removed = x.table.takeChanges()
			all = x.table.list()
		}
	})
	x.tell(added, removed)
	return all
}

// locked calls f with mu held, which a panic of f does not keep locked.
func (x *Index) locked(f func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f()
}

// guard calls f for one object or one handler, so that a panic does not keep the others waiting.
func guard(f func()) {
	loop.GuardFunc(context.Background(), "segments", f) //nolint:forbidigo // a reflector's store has no context
}

// KeysOf returns the topology keys that the driver registered on a node, sorted; nil: none, or no such node.
func (x *Index) KeysOf(node string) []string { return x.Member(node).Keys }

// Member returns what the caches know of a node. What is not there may only be late; see Live. Of a Node's labels
// only those are known whose key the driver registered on some node.
func (x *Index) Member(node string) topology.Member {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.table.nodes[node].member()
	m.Keys = slices.Clone(m.Keys)
	return m
}

// change lets f change the table and starts what follows from it.
func (x *Index) change(f func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f()
	if x.csiNodesSynced {
		select {
		case <-x.csiNodesRead:
		default:
			close(x.csiNodesRead)
		}
	}
	if x.nodesSynced && (!x.told || len(x.table.changed) > 0) {
		signal(x.wake)
	}
	if !x.knows(x.watched) {
		signal(x.grow)
	}
}

// knows reports whether the keys of all sets in use are among these. mu is held.
func (x *Index) knows(keys map[string]bool) bool {
	for key := range x.table.keys {
		if !keys[key] {
			return false
		}
	}
	return true
}

// widen adds the keys of all sets in use to those that Nodes are watched for, and returns them.
func (x *Index) widen() map[string]bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	watched := maps.Clone(x.watched)
	for key := range x.table.keys {
		watched[key] = true
	}
	x.watched = watched
	return watched
}

// tellAll tells the handlers what changed since the last call; nothing before everything is known.
func (x *Index) tellAll() {
	x.telling.Lock()
	defer x.telling.Unlock()
	var added, removed []topology.Segment
	known := false
	x.locked(func() {
		if known = x.told || x.known(); known {
			added, removed = x.table.takeChanges()
		}
	})
	if known {
		x.tell(added, removed)
		x.locked(func() { x.told = true })
	}
}

// known reports whether what was there at the start has been read. mu is held.
func (x *Index) known() bool { return x.nodesSynced && x.csiNodesSynced && x.knows(x.read) }

func (x *Index) tell(added, removed []topology.Segment) {
	if len(added) == 0 && len(removed) == 0 {
		return
	}
	for _, changed := range x.handlers {
		guard(func() { changed(slices.Clone(added), slices.Clone(removed)) })
	}
}

// signal leaves at most one message in a channel of length one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
