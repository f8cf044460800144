package topology

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// What follows is the contract's arithmetic written as plainly as possible: maps, strings and nested loops. It
// shares nothing with the code under test.

type naiveNode struct {
	name   string
	labels map[string]string
	keys   []string // registered for the driver; nil: not registered
}

func naiveText(term map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(term)) {
		parts = append(parts, k+"="+term[k])
	}
	return strings.Join(parts, ",")
}

func naiveLess(a, b map[string]string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	ka, kb := slices.Sorted(maps.Keys(a)), slices.Sorted(maps.Keys(b))
	for i := range ka {
		if c := strings.Compare(ka[i], kb[i]); c != 0 {
			return c
		}
		if c := strings.Compare(a[ka[i]], b[kb[i]]); c != 0 {
			return c
		}
	}
	return 0
}

func naiveCanonical(terms []map[string]string) []map[string]string {
	seen := map[string]bool{}
	var out []map[string]string
	for _, t := range terms {
		if !seen[naiveText(t)] {
			seen[naiveText(t)] = true
			out = append(out, t)
		}
	}
	slices.SortFunc(out, naiveLess)
	return out
}

func naiveIn(a, b map[string]string) bool {
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// naiveExpand is for entries without repeated keys and without empty value lists, as the API server lets them in.
func naiveExpand(allowed []corev1.TopologySelectorTerm) []map[string]string {
	var out []map[string]string
	for _, entry := range allowed {
		if len(entry.MatchLabelExpressions) == 0 {
			continue
		}
		partial := []map[string]string{{}}
		for _, e := range entry.MatchLabelExpressions {
			var next []map[string]string
			for _, p := range partial {
				for _, v := range e.Values {
					q := maps.Clone(p)
					q[e.Key] = v
					next = append(next, q)
				}
			}
			partial = next
		}
		out = append(out, partial...)
	}
	return naiveCanonical(out)
}

// naiveKeys returns the keys that are registered on a node, sorted and without duplicates.
func naiveKeys(n naiveNode) []string { return slices.Compact(slices.Sorted(slices.Values(n.keys))) }

// naiveTerm returns the labels of a node for these keys, nil when one is missing or there are no keys.
func naiveTerm(n naiveNode, keys []string) map[string]string {
	term := map[string]string{}
	for _, k := range keys {
		v, ok := n.labels[k]
		if !ok {
			return nil
		}
		term[k] = v
	}
	if len(term) == 0 {
		return nil
	}
	return term
}

// naiveAggregate returns the terms of the nodes on which the driver registered all of keys. Nil keys stand for
// those that are registered on each node.
func naiveAggregate(nodes []naiveNode, keys []string) []map[string]string {
	var out []map[string]string
	for _, n := range nodes {
		own := naiveKeys(n)
		counts := keys
		if keys == nil {
			counts = own
		}
		registered := true
		for _, k := range counts {
			registered = registered && slices.Contains(own, k)
		}
		if term := naiveTerm(n, counts); registered && term != nil {
			out = append(out, term)
		}
	}
	return naiveCanonical(out)
}

// naiveRequire returns requisite and preferred; both nil means no requirement.
func naiveRequire(r Request, nodes []naiveNode) (requisite, preferred []map[string]string, err error) {
	var keys []string
	var selected map[string]string
	if r.SelectedNode != "" {
		i := slices.IndexFunc(nodes, func(n naiveNode) bool { return n.name == r.SelectedNode })
		if i < 0 {
			return nil, nil, ErrNodeGone
		}
		keys = naiveKeys(nodes[i])
		if selected = naiveTerm(nodes[i], keys); selected == nil {
			return nil, nil, errors.New("no key or no label")
		}
	}
	allowed := naiveExpand(r.AllowedTopologies)
	admitted := func(t map[string]string) bool {
		return slices.ContainsFunc(allowed, func(a map[string]string) bool { return naiveIn(a, t) })
	}
	switch {
	case selected != nil && r.Strict:
		if len(r.AllowedTopologies) > 0 && !admitted(selected) {
			return nil, nil, errors.New("not allowed")
		}
		return []map[string]string{selected}, []map[string]string{selected}, nil
	case len(r.AllowedTopologies) > 0 && (selected == nil || !r.KeepNodeTopology || len(allowed) == 0):
		if requisite = allowed; len(requisite) == 0 {
			return nil, nil, nil
		}
	case selected == nil && len(r.AllowedTopologies) == 0 && !r.Immediate:
		return nil, nil, nil
	default:
		requisite = naiveAggregate(nodes, keys)
		if len(r.AllowedTopologies) > 0 {
			requisite = slices.DeleteFunc(requisite, func(t map[string]string) bool { return !admitted(t) })
		}
		if len(requisite) == 0 {
			return nil, nil, errors.New("nothing available")
		}
	}
	first := 0
	if selected != nil {
		if first = slices.IndexFunc(requisite, func(t map[string]string) bool { return naiveIn(t, selected) }); first < 0 {
			return nil, nil, fmt.Errorf("selected %v not in requisite", selected)
		}
	} else {
		first = naiveSpread(r.ClaimName, len(requisite))
	}
	return requisite, append(slices.Clone(requisite[first:]), requisite[:first]...), nil
}

// naiveSpread is for names that are not empty.
func naiveSpread(name string, n int) int {
	hashed, ordinal := name, uint64(0)
	if i := strings.LastIndex(name, "-"); i >= 0 {
		digits, number := name[i+1:], uint64(0)
		ok := digits != ""
		for _, c := range digits {
			if c < '0' || c > '9' || number >= 1<<32 {
				ok = false
				break
			}
			number = number*10 + uint64(c-'0')
		}
		if ok && number < 1<<32 {
			ordinal = number
			parts := strings.Split(name[:i], "-")
			hashed = parts[len(parts)-1]
		}
	}
	hash := uint64(2166136261)
	for _, c := range []byte(hashed) {
		hash = hash * 16777619 % (1 << 32)
		hash ^= uint64(c)
	}
	return int((hash + ordinal) % (1 << 32) % uint64(n))
}

// naiveFacts gathers Facts the long way, as segments.Index does the short way.
func naiveFacts(r Request, nodes []naiveNode) (Facts, error) {
	var f Facts
	var keys []string
	for _, n := range nodes {
		f.Keys = KeySet(append(f.Keys, n.keys...))
	}
	if r.SelectedNode != "" {
		var m Member
		for _, n := range nodes {
			if n.name == r.SelectedNode {
				m = Member{NodeExists: true, CSINodeExists: true, Registered: n.keys != nil, Keys: KeySet(n.keys), Labels: SegmentOf(n.labels)}
			}
		}
		var err error
		if f.Node, err = m.Select(r.SelectedNode); err != nil {
			return f, err
		}
		f.Keys, keys = m.Keys, m.Keys
	}
	var list []Segment
	for _, t := range naiveAggregate(nodes, keys) {
		list = append(list, SegmentOf(t))
	}
	f.Terms = NewTerms(list)
	return f, nil
}
