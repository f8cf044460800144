package volume

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// ClaimKeys says which annotations and labels of a claim are meant. The zero value means none.
type ClaimKeys struct {
	Annotations, Labels Keys
}

func (k ClaimKeys) none() bool { return len(k.Annotations) == 0 && len(k.Labels) == 0 }

const (
	// maxParameterBytes bounds what a claim may add to the parameters: the CSI spec, section "Size Limits", has it as
	// the most for a map.
	maxParameterBytes = 4 << 10
	// maxCopiedBytes bounds the annotations that a PersistentVolume takes over. The API server takes 256 KiB of all,
	// and refuses more only when the volume is made.
	maxCopiedBytes = 192 << 10
)

// AddClaimMetadata adds to parameters, a map made by Parameters, the claim's annotations and labels with these keys.
// What is ours on the claim is never among them. More than a driver has to bear is an error, Failed.
func AddClaimMetadata(parameters map[string]string, claim *corev1.PersistentVolumeClaim, keys ClaimKeys) error {
	if keys.none() {
		return nil
	}
	size := 0
	add := func(prefix string, wanted Keys, pairs map[string]string) {
		for key, value := range pairs {
			if wanted.Has(key) && !KeptFromDriver(key) {
				parameters[prefix+key] = value
				size += len(prefix) + len(key) + len(value)
			}
		}
	}
	add(wellknown.ParamClaimAnnotationPrefix, keys.Annotations, claim.Annotations)
	add(wellknown.ParamClaimLabelPrefix, keys.Labels, claim.Labels)
	if size > maxParameterBytes {
		return outcome.With(outcome.Failed, fmt.Errorf(
			"annotations and labels of the claim that the driver is to be told have %d bytes, more than %d: make them shorter, or have fewer of those that --create-metadata-annotations and --create-metadata-labels name",
			size, maxParameterBytes))
	}
	return nil
}

// CopiedToPV returns the claim's labels and annotations with these keys, but for those that KeptFromPV names; nil
// for none. The maps belong to the caller. More annotations than a PersistentVolume can bear are an error, Failed.
func CopiedToPV(claim *corev1.PersistentVolumeClaim, keys ClaimKeys) (labels, annotations map[string]string, err error) {
	if keys.none() {
		return nil, nil, nil
	}
	labels, _ = copied(keys.Labels, claim.Labels)
	annotations, size := copied(keys.Annotations, claim.Annotations)
	if size > maxCopiedBytes {
		return nil, nil, outcome.With(outcome.Failed, fmt.Errorf(
			"annotations of the claim that its PersistentVolume is to have, too, have %d bytes, more than %d: make them shorter, or have fewer of those that --pv-copy-annotations names",
			size, maxCopiedBytes))
	}
	return labels, annotations, nil
}

func copied(wanted Keys, pairs map[string]string) (picked map[string]string, sizeBytes int) {
	for key, value := range pairs {
		if !wanted.Has(key) || KeptFromPV(key) {
			continue
		}
		if picked == nil {
			picked = map[string]string{}
		}
		picked[key] = value
		sizeBytes += len(key) + len(value)
	}
	return picked, sizeBytes
}

// KeptFromDriver reports whether an annotation is never told to the driver, whatever the patterns say: that of
// pre-releases, which goes while the request must stay the same.
func KeptFromDriver(key string) bool { return key == wellknown.AnnProvisioningInProgress }

// KeptFromPV reports whether a label or annotation is never copied from a claim to its PersistentVolume, whatever the
// patterns say: what stands in the domains of Kubernetes. Who may edit a claim would say with them how its volume
// is deleted and with which secret, mounted, for which group of users, or placed. Those of app.kubernetes.io only
// describe, and are copied.
func KeptFromPV(key string) bool {
	domain, _, prefixed := strings.Cut(strings.ToLower(key), "/")
	if !prefixed || domain == "app.kubernetes.io" {
		return false
	}
	for _, reserved := range []string{"kubernetes.io", "k8s.io"} {
		if domain == reserved || strings.HasSuffix(domain, "."+reserved) {
			return true
		}
	}
	return false
}
