package segments

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

var errNotSynced = errors.New("the cluster's topology is not known yet")

// Require returns the accessibility requirement for a request, nil for none. The result is shared with other
// claims: it must not be changed, and is better not cloned. When the caches do not show the selected node, the API
// server is asked once before it is called gone: an error with topology.ErrNodeGone in its chain means that it is
// gone, any other that a later try may succeed. When ctx ends, nothing is waited for any more, and the error is the cause of
// that.
func (x *Index) Require(ctx context.Context, r topology.Request) (*csi.TopologyRequirement, error) {
	facts, err := x.facts(ctx, r)
	if err != nil {
		return nil, err
	}
	facts.Expansions = &x.expansions
	return topology.Require(r, facts)
}

func (x *Index) facts(ctx context.Context, r topology.Request) (topology.Facts, error) {
	if r.SelectedNode == "" {
		if !r.NeedsTerms() {
			return topology.Facts{}, nil
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.withTerms(topology.Facts{Keys: x.table.registeredKeys()}, x.table.allTerms)
	}
	m, err := x.member(ctx, r.SelectedNode)
	if err != nil {
		return topology.Facts{}, err
	}
	facts := topology.Facts{Keys: m.Keys}
	if facts.Node, err = m.Select(r.SelectedNode); err != nil {
		hinted, ok := x.hinted(m, r.Hint)
		if !ok {
			return topology.Facts{}, err
		}
		facts = hinted
	}
	if !r.NeedsTerms() {
		return facts, nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.withTerms(facts, func() *topology.Terms { return x.table.termsOf(facts.Keys) })
}

// withTerms adds the terms, for which the labels of facts.Keys are needed. mu is held.
func (x *Index) withTerms(facts topology.Facts, terms func() *topology.Terms) (topology.Facts, error) {
	if err := x.syncedLocked(); err != nil {
		return facts, err
	}
	for _, key := range facts.Keys {
		if !x.read[key] {
			return facts, fmt.Errorf("the labels of the nodes for the topology keys [%s] are being read", strings.Join(facts.Keys, " "))
		}
	}
	facts.Terms = terms()
	return facts, nil
}

func (x *Index) syncedLocked() error {
	if !x.nodesSynced || !x.csiNodesSynced {
		return errNotSynced
	}
	return nil
}

// member returns what is known of the selected node, from the caches if they show all of it.
func (x *Index) member(ctx context.Context, node string) (topology.Member, error) {
	var m topology.Member
	var read bool
	var err error
	x.locked(func() {
		err = x.syncedLocked()
		m = x.table.nodes[node].member()
		read = !slices.ContainsFunc(m.Keys, func(key string) bool { return !x.read[key] })
	})
	if err != nil || m.NodeExists && m.CSINodeExists && read {
		return m, err
	}
	reply := make(chan answer, 1)
	select {
	case x.lookups <- lookup{node: node, reply: reply}:
	case <-x.ended:
		return m, fmt.Errorf("read node %q: %w", node, errEnded)
	case <-ctx.Done():
		return m, fmt.Errorf("read node %q: %w", node, context.Cause(ctx))
	}
	select {
	case got := <-reply:
		return got.member, got.err
	case <-ctx.Done():
		return m, fmt.Errorf("read node %q: %w", node, context.Cause(ctx))
	}
}

var errEnded = errors.New("the node watch has ended")

// hinted returns the facts that a hint gives about a node that cannot be read any more. The hint comes from an
// object that users may write, so only the driver's keys count, and all of those that its CSINode names.
func (x *Index) hinted(m topology.Member, hint map[string]string) (topology.Facts, bool) {
	x.mu.Lock()
	known := x.watched
	x.mu.Unlock()
	node := topology.Restrict(hint, func(key string) bool { return known[key] || slices.Contains(m.Keys, key) })
	if len(m.Keys) > 0 {
		node, _ = node.Project(m.Keys)
	}
	return topology.Facts{Node: node, Keys: slices.Sorted(maps.Keys(node.Map()))}, !node.IsEmpty()
}
