package volume

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/secret"
)

// SecretRefs are the Secrets that a class names for the calls about one volume. Nil means none.
type SecretRefs struct {
	Provisioner       *corev1.SecretReference
	ControllerPublish *corev1.SecretReference
	NodeStage         *corev1.SecretReference
	NodePublish       *corev1.SecretReference
	ControllerExpand  *corev1.SecretReference
	NodeExpand        *corev1.SecretReference
	ControllerModify  *corev1.SecretReference
}

// ResolveSecrets resolves the references of all consumers, in the order of the fields of SecretRefs, and ends
// at the first error. Nothing is read. An error carries no outcome: the driver was not reached, try again.
func ResolveSecrets(parameters map[string]string, n secret.Names) (SecretRefs, error) {
	var refs SecretRefs
	for _, step := range []struct {
		consumer secret.Consumer
		ref      **corev1.SecretReference
	}{
		{secret.Provisioner, &refs.Provisioner},
		{secret.ControllerPublish, &refs.ControllerPublish},
		{secret.NodeStage, &refs.NodeStage},
		{secret.NodePublish, &refs.NodePublish},
		{secret.ControllerExpand, &refs.ControllerExpand},
		{secret.NodeExpand, &refs.NodeExpand},
		{secret.ControllerModify, &refs.ControllerModify},
	} {
		ref, err := secret.Resolve(step.consumer, parameters, n)
		if err != nil {
			return SecretRefs{}, err
		}
		*step.ref = ref
	}
	return refs, nil
}
