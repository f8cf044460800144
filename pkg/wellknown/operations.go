package wellknown

// What Leases of CreateVolume operations carry.
const (
	// AnnOperation is the operation in flight, as JSON. A Lease without it is free.
	AnnOperation = "provisioner.storage.kubernetes.io/operation"
	// AnnForgetOperation, set to "true" by hand, ends the operation: what it may have made is left to whoever sets it.
	AnnForgetOperation = "provisioner.storage.kubernetes.io/forget"
	// LabelOperationsOf is the driver whose operations the Lease is for: its name or, if that is no label value, a hash.
	LabelOperationsOf = "provisioner.storage.kubernetes.io/operations-of"
	// LabelOperationsNode is a hash of the node's name, in node deployment.
	LabelOperationsNode = "provisioner.storage.kubernetes.io/operations-node"
)
