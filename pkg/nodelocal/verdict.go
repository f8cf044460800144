package nodelocal

import storagev1 "k8s.io/api/storage/v1"

// Verdict is what the instance of one node does about a claim.
type Verdict int

const (
	// NotOurs is the zero value: another node, or nobody yet, has the claim. Nothing is done and nothing is said.
	NotOurs Verdict = iota
	// Owned means that the claim was given to this node: provision it.
	Owned
	// Compete means that the claim may go to any node: wait as Race says, then try to become its owner.
	Compete
)

// String returns the name as it appears in logs.
func (v Verdict) String() string {
	switch v {
	case NotOurs:
		return "NotOurs"
	case Owned:
		return "Owned"
	case Compete:
		return "Compete"
	}
	return "invalid"
}

// Question is what is known of a claim that one of our provisioner names is on.
type Question struct {
	// Node is the name of this node.
	Node string
	// SelectedNode is the value of the claim's annotation volume.kubernetes.io/selected-node; empty: none. Its
	// older alpha twin does not count here.
	SelectedNode string
	// Class is the class of the claim; nil: the claim names none.
	Class *storagev1.StorageClass
	// ImmediateBinding lets instances compete for claims without a selected node (--node-deployment-immediate-binding).
	ImmediateBinding bool
	// Reachable tries whether this node can be among the class's allowedTopologies: nil if it can. It is called at most
	// once, and only when everything else speaks for competing. Nil when topology is not supported.
	Reachable func() error
}

// Judge returns the verdict. The error is why the node cannot serve a claim that it would compete for
// otherwise; the verdict then is NotOurs, and the error is only worth a line in the log.
func Judge(q Question) (Verdict, error) {
	if q.SelectedNode != "" {
		if q.SelectedNode == q.Node {
			return Owned, nil
		}
		return NotOurs, nil
	}
	if !q.ImmediateBinding || q.Class == nil {
		return NotOurs, nil
	}
	// An unset binding mode is not taken for Immediate here, though the API's default is.
	if mode := q.Class.VolumeBindingMode; mode == nil || *mode != storagev1.VolumeBindingImmediate {
		return NotOurs, nil
	}
	if len(q.Class.AllowedTopologies) > 0 && q.Reachable != nil {
		if err := q.Reachable(); err != nil {
			return NotOurs, err
		}
	}
	return Compete, nil
}
