package main

import (
	"time"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/driver"
	"github.com/csi-sidecars/external-provisioner/pkg/features"
	"github.com/csi-sidecars/external-provisioner/pkg/trace"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// Config is what one process is to do: resolved, validated, with the environment read in. It never changes
// after Complete has made it; its slices and maps are read-only.
type Config struct {
	// Version of this build, "unknown" when it was not stamped.
	Version string
	// PodNamespace is that of this pod, never empty: POD_NAMESPACE, else the service account's, else "default".
	PodNamespace string
	// Hostname of this machine or pod; part of the event source of the provisioning events. May be empty.
	Hostname string
	// Driver is how to reach the CSI driver.
	Driver DriverConfig
	// Kube is how to reach the API server.
	Kube KubeConfig
	// Gates are the resolved feature gates (--feature-gates).
	Gates features.Gates
	// Volumes is what volumes and PersistentVolumes look like.
	Volumes VolumeConfig
	// Work is how much is done at once and how failures are retried.
	Work WorkConfig
	// Capacity is about CSIStorageCapacity objects.
	Capacity CapacityConfig
	// Node is about serving one node only.
	Node NodeConfig
	// Election is about the leader lease.
	Election ElectionConfig
	// HTTP is the diagnostics server.
	HTTP HTTPConfig
	// Traces is where traces are sent; nil means nowhere (--otlp-endpoint, and the variables OTEL_…).
	Traces *trace.Config
}

// DriverConfig tells how to reach and call the driver.
type DriverConfig struct {
	// Address is the absolute path of the socket, alone or after unix:// (--csi-address).
	Address string
	// Timeout is the deadline of each call, above zero (--timeout).
	Timeout time.Duration
	// Timeouts are the deadlines of calls that have one of their own, not negative; 0 means Timeout
	// (--create-timeout, --restore-timeout, --clone-timeout, --delete-timeout).
	Timeouts driver.Timeouts
}

// KubeConfig tells how to reach the API server.
type KubeConfig struct {
	// Kubeconfigs are files in order of precedence, to be merged by the usual loading rules: those of the
	// environment's KUBECONFIG, else the one of --kubeconfig; for a query the one of --kubeconfig comes first. Empty
	// means in-cluster, unless Master is set.
	Kubeconfigs []string
	// Master overrides the server's URL (--master). May be empty.
	Master string
	// Context and As are a query's --context and --as; empty for the sidecar.
	Context, As string
	// QPS is the rate of each provisioning client (--kube-api-qps): 0 means client-go's default of 5,
	// negative means unlimited. Always finite.
	QPS float32
	// Burst goes with QPS (--kube-api-burst); above zero when QPS is.
	Burst int
}

func (k KubeConfig) address() cluster.Address {
	return cluster.Address{Kubeconfigs: k.Kubeconfigs, Master: k.Master, Context: k.Context, As: k.As}
}

// VolumeConfig tells what volumes and PersistentVolumes look like.
type VolumeConfig struct {
	// NamePrefix is the first part of a volume's name, never empty (--volume-name-prefix).
	NamePrefix string
	// NameUUIDLength is -1 for the whole UID, or 1 to 32 (--volume-name-uuid-length).
	NameUUIDLength int
	// DefaultFSType is for classes that name none; empty means none (--default-fstype).
	DefaultFSType string
	// ExtraCreateMetadata adds the names of claim and PV to the parameters (--extra-create-metadata).
	ExtraCreateMetadata bool
	// CreateMetadata is what the driver is told of the claim (--create-metadata-annotations,
	// --create-metadata-labels), CopyToPV what the PersistentVolume takes over from it (--pv-copy-annotations,
	// --pv-copy-labels).
	CreateMetadata, CopyToPV volume.ClaimKeys
	// PublishReadonly marks ReadOnlyMany PVs as read-only (--controller-publish-readonly).
	PublishReadonly bool
	// PreventModeConversion refuses to change the mode on restore (--prevent-volume-mode-conversion).
	PreventModeConversion bool
	// StrictTopology asks for the selected node's segment alone (--strict-topology).
	StrictTopology bool
	// ImmediateTopology asks for the whole cluster's segments with immediate binding (--immediate-topology).
	ImmediateTopology bool
	// GrowToSourceSize raises a too small request to the source's size (--grow-to-source-size).
	GrowToSourceSize bool
	// KeepNodeTopology prefers the selected node's whole segment also when the allowed topologies name only
	// some of the driver's keys (--keep-node-topology).
	KeepNodeTopology bool
	// DeletionSecretNamespaces are the only namespaces for the secrets of a PersistentVolume's deletion, sorted
	// and without duplicates; nil means all (--deletion-secret-namespaces).
	DeletionSecretNamespaces []string
}

// WorkConfig tells how much is done at once and how failures are retried.
type WorkConfig struct {
	// RetryStart and RetryMax bound the exponential back-off, both above zero (--retry-interval-start,
	// --retry-interval-max). RetryMax may be the smaller one.
	RetryStart, RetryMax time.Duration
	// CreateWorkers is the number of claim workers (--create-threads, else --worker-threads), DeleteWorkers that of
	// PV workers (--delete-threads, else --worker-threads). 0 means none.
	CreateWorkers, DeleteWorkers int
	// MaxCreatesPerSource bounds the creates at once from one source; 0 means no bound (--max-creates-per-source).
	MaxCreatesPerSource int
	// CloneWorkers release sources of clones (--cloning-protection-threads). 0 means none.
	CloneWorkers int
	// SnapshotSweep is the pause between two sweeps; 0 means off (--snapshot-orphan-sweep-interval).
	SnapshotSweep time.Duration
	// OperationLeases records each CreateVolume operation in a Lease before the driver is called (--operation-leases).
	OperationLeases bool
	// QuietEvents records only events that tell something new (--quiet-events).
	QuietEvents bool
	// DrainTimeout bounds the calls in flight after a stop, not negative (--shutdown-drain-timeout).
	DrainTimeout time.Duration
}

// CapacityConfig is about CSIStorageCapacity objects. Unless Enabled it is empty: what the flags say is not even validated.
type CapacityConfig struct {
	// Enabled publishes objects (--enable-capacity).
	Enabled bool
	// Namespace of the objects and of the pod (environment NAMESPACE); not empty.
	Namespace string
	// PodName is where the owner walk begins (environment POD_NAME); not empty when OwnerLevel is not negative.
	PodName string
	// OwnerLevel is 0 for the pod, n for its n-th controller, negative for no owner (--capacity-ownerref-level).
	OwnerLevel int
	// Poll is the period of asking again, above zero (--capacity-poll-interval).
	Poll time.Duration
	// Workers work on objects (--capacity-threads). 0 means none.
	Workers int
	// ImmediateBinding publishes for immediate-binding classes too (--capacity-for-immediate-binding).
	ImmediateBinding bool
	// RespectAllowedTopologies leaves out segments that the class does not admit
	// (--capacity-respect-allowed-topologies).
	RespectAllowedTopologies bool
	// QPS and Burst are the limits of the capacity client, as in KubeConfig (--kube-api-capacity-qps, -burst).
	QPS   float32
	Burst int
}

// NodeConfig is about serving one node only.
type NodeConfig struct {
	// Enabled is node mode (--node-deployment).
	Enabled bool
	// Name of the node (environment NODE_NAME): not empty in node mode, empty otherwise.
	Name string
	// ImmediateBinding competes for immediate-binding claims (--node-deployment-immediate-binding).
	ImmediateBinding bool
	// BaseDelay and MaxDelay bound the race for them (--node-deployment-base-delay, -max-delay).
	BaseDelay, MaxDelay time.Duration
	// Cleanup looks after claims of nodes without the driver, and PersistentVolumes and operation Leases of nodes
	// that are gone (--node-deployment-cleanup).
	Cleanup bool
}

// ElectionConfig is about the leader lease. Unless Enabled, the durations and labels are not validated.
type ElectionConfig struct {
	// Enabled works only while holding the lease (--leader-election).
	Enabled bool
	// Namespace of the lease, never empty: --leader-election-namespace, else POD_NAMESPACE, else the service
	// account's, else "default".
	Namespace string
	// Pod is the first part of the holder's identity: POD_NAME, else the pod of the service-account token, else the
	// hostname; sanitised like the lease's name. PodUID is that of the token, empty without one.
	Pod, PodUID string
	// LeaseDuration > RenewDeadline > 1.2 × RetryPeriod > 0 (--leader-election-lease-duration,
	// -renew-deadline, -retry-period).
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// Labels are set on the lease (--leader-election-labels). May be nil.
	Labels map[string]string
}

// HTTPConfig is the diagnostics server.
type HTTPConfig struct {
	// Address is host:port; empty means no server (--http-endpoint, or the older --metrics-address).
	Address string
	// MetricsPath begins with "/" and collides with no other path (--metrics-path).
	MetricsPath string
	// Pprof serves /debug/pprof/ (--enable-pprof).
	Pprof bool
}
