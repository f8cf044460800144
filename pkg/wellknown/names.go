package wellknown

// Labels of CSIStorageCapacity objects.
const (
	// LabelDriverName is the driver that an object speaks of.
	LabelDriverName = "csi.storage.k8s.io/drivername"
	// LabelManagedBy is the instance that keeps the object.
	LabelManagedBy = "csi.storage.k8s.io/managed-by"
	// ManagedByBase is its value in central mode and its first part in node deployment.
	ManagedByBase = "external-provisioner"
)

// EventComponent is the source of events that do not belong to the claim and volume loop.
const EventComponent = "external-provisioner"

// Kinds and groups of data sources.
const (
	KindClaim     = "PersistentVolumeClaim"
	KindSnapshot  = "VolumeSnapshot"
	GroupSnapshot = "snapshot.storage.k8s.io"
)
