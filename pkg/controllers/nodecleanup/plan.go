package nodecleanup

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// names are those that a driver answers to.
type names struct {
	driver string
	inTree string // the in-tree plugin that it replaces; "" for none
}

// selectedNode returns the node that a claim waits for; "" for none, and for a claim of another driver.
func selectedNode(claim *corev1.PersistentVolumeClaim, n names) string {
	if claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil || !n.serve(claim) {
		return ""
	}
	return claim.Annotations[wellknown.AnnSelectedNode]
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
