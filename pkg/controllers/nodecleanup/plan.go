package nodecleanup

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// names are those that a driver answers to.
type names struct {
	driver string
	inTree string // the in-tree plugin that it replaces; "" for none
}

// bonds are the nodes that a claim hangs on; "" means none.
type bonds struct {
	// selected is the node that the volume is to be made for, while there is no volume.
	selected string
	// marked is the node whose create may have made a volume that only the marker speaks of.
	marked string
}

// nodes returns the nodes of b, each once.
func (b bonds) nodes() []string {
	all := []string{b.selected, b.marked}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(name string) bool { return name == "" })
}

// bondsOf returns what a claim hangs on. A claim of another driver, or one with a marker that does not say which
// create of which node it is about, is nobody's business here.
func bondsOf(claim *corev1.PersistentVolumeClaim, n names) bonds {
	var b bonds
	value, annotated := claim.Annotations[wellknown.AnnProvisioningInProgress]
	if annotated || slices.Contains(claim.Finalizers, wellknown.FinalizerProvisioningInProgress) {
		var ok bool
		if b.marked, ok = markedNode(claim.UID, value, n.driver); !ok {
			return bonds{}
		}
	}
	if claim.Spec.VolumeName == "" && claim.DeletionTimestamp == nil && n.serve(claim) {
		b.selected = claim.Annotations[wellknown.AnnSelectedNode]
	}
	return b
}

// markedNode reads the node out of a marker that is about this claim and our driver.
func markedNode(uid types.UID, marker, driver string) (string, bool) {
	var m struct {
		UID    types.UID `json:"uid"`
		Driver string    `json:"driver"`
		Node   string    `json:"node"`
	}
	if err := json.Unmarshal([]byte(marker), &m); err != nil || m.UID != uid || m.Driver != driver || m.Node == "" {
		return "", false
	}
	return m.Node, true
}

// serve reports whether the driver is the one that must make the claim's volume.
func (n names) serve(claim *corev1.PersistentVolumeClaim) bool {
	return volume.OwnedClaim(claim, n.driver, n.inTree)
}

// nodeState is what the API server says of a node.
type nodeState int

const (
	// serving: it exists and has the driver. The zero value, so that nothing is done about an unknown node.
	serving nodeState = iota
	// driverless: it exists, and the driver is not registered in its CSINode.
	driverless
	// gone: there is no such Node.
	gone
)

// remedy is what to do about a claim; the zero value is nothing.
type remedy struct {
	// unselect takes the selected node off, endMarker the marker. Both are done in one update.
	unselect, endMarker bool
	// why is the state of the selected node that is taken off.
	why nodeState
}

// remedyFor decides about a claim, given the states of its nodes. While the marker's node exists, nothing is done:
// its instance finishes what it has begun.
func remedyFor(b bonds, states map[string]nodeState) remedy {
	var r remedy
	if b.marked != "" {
		if states[b.marked] != gone {
			return remedy{}
		}
		r.endMarker = true
	}
	if state := states[b.selected]; b.selected != "" && state != serving {
		r.unselect, r.why = true, state
	}
	return r
}

// stranded reports whether only a node could delete the volume: it is ours, to be deleted, and not accessible from
// everywhere.
func stranded(pv *corev1.PersistentVolume, n names) bool {
	return volume.Owned(pv, n.driver, n.inTree) && volume.WantsDelete(pv) && len(affinityTerms(pv)) > 0
}

func affinityTerms(pv *corev1.PersistentVolume) []corev1.NodeSelectorTerm {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return nil
	}
	return pv.Spec.NodeAffinity.Required.NodeSelectorTerms
}

// question asks the API server for nodes: one that matches is enough.
type question struct{ labels, fields string }

// questionsFor returns the questions that must all be answered "none" before the nodes of a volume count as lost:
// one for each term of its affinity, and one for the node whose instance has made it. The latter is for a node that
// is there and has not got its labels back yet. The error says that the affinity cannot be put as questions; such a
// volume is left alone. Sorted, without duplicates.
func questionsFor(pv *corev1.PersistentVolume, driver string) ([]question, error) {
	var all []question
	for i, term := range affinityTerms(pv) {
		q, err := questionFor(term)
		if err != nil {
			return nil, fmt.Errorf("term %d of the node affinity: %w", i, err)
		}
		all = append(all, q)
	}
	if node := makerOf(pv, driver); node != "" {
		all = append(all, question{fields: fields.OneTermEqualSelector(metav1.ObjectNameField, node).String()})
	}
	slices.SortFunc(all, func(a, b question) int {
		if c := strings.Compare(a.labels, b.labels); c != 0 {
			return c
		}
		return strings.Compare(a.fields, b.fields)
	})
	return slices.Compact(all), nil
}

var operators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn:           selection.In,
	corev1.NodeSelectorOpNotIn:        selection.NotIn,
	corev1.NodeSelectorOpExists:       selection.Exists,
	corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	corev1.NodeSelectorOpGt:           selection.GreaterThan,
	corev1.NodeSelectorOpLt:           selection.LessThan,
}

func questionFor(term corev1.NodeSelectorTerm) (question, error) {
	if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
		return question{}, errors.New("it is empty and matches no node")
	}
	selector := labels.NewSelector()
	for _, e := range term.MatchExpressions {
		operator, ok := operators[e.Operator]
		if !ok {
			return question{}, fmt.Errorf("unknown operator %q", e.Operator)
		}
		requirement, err := labels.NewRequirement(e.Key, operator, e.Values)
		if err != nil {
			return question{}, err
		}
		selector = selector.Add(*requirement)
	}
	var named []fields.Selector
	for _, f := range term.MatchFields {
		if f.Key != metav1.ObjectNameField || f.Operator != corev1.NodeSelectorOpIn || len(f.Values) != 1 {
			return question{}, fmt.Errorf("field %q with operator %q and %d values", f.Key, f.Operator, len(f.Values))
		}
		named = append(named, fields.OneTermEqualSelector(f.Key, f.Values[0]))
	}
	return question{labels: selector.String(), fields: fields.AndSelectors(named...).String()}, nil
}

// makerOf returns the node whose instance has made the volume, "" when it was not made in node deployment. The
// identity of a provisioner is <milliseconds>-<number>-<driver>, and in node deployment -<node> after that.
func makerOf(pv *corev1.PersistentVolume, driver string) string {
	if pv.Spec.CSI == nil {
		return ""
	}
	parts := strings.SplitN(pv.Spec.CSI.VolumeAttributes[wellknown.AttributeIdentity], "-", 3)
	if len(parts) != 3 {
		return ""
	}
	node, ok := strings.CutPrefix(parts[2], driver+"-")
	if !ok {
		return ""
	}
	return node
}

// turn shares out the writes of a round: who finds nothing left is the first of the next round, so that objects that
// cannot be written, for whatever reason, do not keep off the others. The zero value has nothing left.
type turn struct {
	left int
	next string // the name of the first that found nothing left; "" when all had their turn
}

// order begins a round with that many writes, and returns the sorted names from the one whose turn it is.
func (t *turn) order(names []string, writes int) []string {
	at, _ := slices.BinarySearch(names, t.next)
	*t = turn{left: writes}
	return slices.Concat(names[at:], names[:at])
}

// take reports whether name may be written.
func (t *turn) take(name string) bool {
	switch {
	case t.left > 0:
		t.left--
		return true
	case t.next == "":
		t.next = name
	}
	return false
}
