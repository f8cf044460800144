package topology

import (
	"errors"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ErrNodeGone is in the chain of an error that says that the selected node, or what its kubelet registered for
// the driver, is not there any more: another node must be selected, unless a create is unanswered.
var ErrNodeGone = errors.New("the selected node is gone")

// Request is what a claim, its class and the flags say about where a volume may be. The zero value asks for
// no requirement at all.
type Request struct {
	// ClaimName decides where preferred begins when no node is selected.
	ClaimName string
	// ClaimUID stands in for an empty name.
	ClaimUID types.UID
	// AllowedTopologies are those of the class, translated when the class is one of an in-tree plugin. Their content
	// must never change.
	AllowedTopologies []corev1.TopologySelectorTerm
	// SelectedNode is the node that the claim's first pod runs on, or empty.
	SelectedNode string
	// Strict asks for just the segment of the selected node (--strict-topology).
	Strict bool
	// Immediate asks for all segments of the cluster when nothing else limits the volume (--immediate-topology).
	Immediate bool
	// KeepNodeTopology has allowedTopologies filter the segments of the cluster in place of being sent, when a node
	// is selected and Strict is off: then the node's own segment comes first in preferred, with all its pairs
	// (--keep-node-topology).
	KeepNodeTopology bool
	// Hint is the segment of SelectedNode as an earlier process knew it. It serves, restricted to the keys of the
	// driver, when the node is gone. Nil: a node that is gone is an error.
	Hint map[string]string
}

// NeedsTerms reports whether Require wants Facts.Terms for this request.
func (r Request) NeedsTerms() bool {
	switch {
	case r.SelectedNode == "":
		return len(r.AllowedTopologies) == 0 && r.Immediate
	case r.Strict:
		return false
	default:
		return len(r.AllowedTopologies) == 0 || r.KeepNodeTopology
	}
}

// Facts is what the cluster has to say to a request.
type Facts struct {
	// Node is the segment of the selected node. Without a selected node it is not looked at.
	Node Segment
	// Keys are the topology keys that the driver registered on the selected node, or without one those that it
	// registered on any node, sorted; for messages. Nil: none.
	Keys []string
	// Terms are, for a selected node, the segments of Keys of all nodes on which the driver registered all of
	// Keys; without one, the segments of all nodes, each of the keys that the driver registered there. Only
	// looked at when Request.NeedsTerms.
	Terms *Terms
	// Expansions remember what allowedTopologies stand for. Nil: each requirement expands them for itself.
	Expansions *Expansions
}

// Require returns the accessibility requirement for a request, or nil when there is none to make. The result
// is shared with others that were made from the same Terms: it must not be changed, and a clone of it loses the
// sharing. Preferred is always a rotation of requisite.
func Require(r Request, f Facts) (*csi.TopologyRequirement, error) {
	if r.SelectedNode != "" {
		return requireNode(r, f)
	}
	if len(r.AllowedTopologies) == 0 && !r.Immediate {
		return nil, nil
	}
	terms, err := requisite(r, f)
	if err != nil || terms.Len() == 0 {
		return nil, err
	}
	return terms.requirement(spread(r.ClaimName, string(r.ClaimUID), terms.Len())), nil
}

// requireNode is Require for a claim with a selected node.
func requireNode(r Request, f Facts) (*csi.TopologyRequirement, error) {
	if r.Strict {
		if len(r.AllowedTopologies) > 0 && !Satisfies(f.Node, r.AllowedTopologies) {
			return nil, fmt.Errorf("topology {%s} of the selected node %q is not in allowedTopologies %s",
				f.Node, r.SelectedNode, describe(r.AllowedTopologies))
		}
		return NewTerms([]Segment{f.Node}).requirement(0), nil
	}
	terms, err := requisite(r, f)
	if err != nil || terms.Len() == 0 {
		return nil, err
	}
	first := terms.firstIn(f.Node)
	if first < 0 {
		return nil, fmt.Errorf("topology {%s} of the selected node %q is not in the requisite topology %s",
			f.Node, r.SelectedNode, terms.describe())
	}
	return terms.requirement(first), nil
}

// requisite returns the terms to send, the selected node's among them if the cluster's terms are sent. It
// returns none only for allowedTopologies that stand for nothing.
func requisite(r Request, f Facts) (*Terms, error) {
	if len(r.AllowedTopologies) > 0 && (standsForNothing(r.AllowedTopologies) || !r.NeedsTerms()) {
		return f.Expansions.terms(r.AllowedTopologies)
	}
	terms := f.Terms
	if r.SelectedNode != "" {
		// The node may be known from elsewhere than the terms are: from a hint, or read ahead of them.
		terms = terms.with(f.Node)
	}
	if terms.Len() == 0 {
		return nil, noTerms(f.Keys)
	}
	if len(r.AllowedTopologies) == 0 {
		return terms, nil
	}
	allowed := terms.satisfying(r.AllowedTopologies)
	if allowed.Len() == 0 {
		return nil, fmt.Errorf("no available topology found: allowedTopologies %s admit none of %s",
			describe(r.AllowedTopologies), terms.describe())
	}
	return allowed, nil
}

// noTerms returns the error for a cluster in which no node contributes a term.
func noTerms(keys []string) error {
	if len(keys) == 0 {
		return errors.New("no available topology found: no node has registered the driver with a topology key: check that its node plugin runs, and the CSINode objects")
	}
	return fmt.Errorf("no available topology found: the driver's topology keys [%s] are not found as labels on any node where it registered them",
		strings.Join(keys, " "))
}

// maxListed bounds the lists in messages, which become events.
const maxListed = 10

func (t *Terms) describe() string {
	var texts []string
	for i, s := range t.Segments() {
		if i == maxListed {
			texts = append(texts, fmt.Sprintf("and %d more", t.Len()-maxListed))
			break
		}
		texts = append(texts, "{"+s.String()+"}")
	}
	return "[" + strings.Join(texts, " ") + "]"
}

func describe(allowed []corev1.TopologySelectorTerm) string {
	var texts []string
	for i, entry := range allowed {
		if i == maxListed {
			texts = append(texts, fmt.Sprintf("and %d more", len(allowed)-maxListed))
			break
		}
		var expressions []string
		for _, e := range entry.MatchLabelExpressions {
			values := e.Values
			if len(values) > maxListed {
				values = append(values[:maxListed:maxListed], fmt.Sprintf("and %d more", len(values)-maxListed))
			}
			expressions = append(expressions, fmt.Sprintf("%s in (%s)", e.Key, strings.Join(values, ",")))
		}
		texts = append(texts, "{"+strings.Join(expressions, " and ")+"}")
	}
	return "[" + strings.Join(texts, " ") + "]"
}
