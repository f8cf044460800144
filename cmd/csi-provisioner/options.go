package main

import (
	"time"

	"github.com/spf13/pflag"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/features"
)

// Options are the flags as the operator wrote them. A flag set binds them; Validate and Complete turn them,
// with the environment, into a Config. Nothing else reads a flag.
type Options struct {
	// set are the flags of the command line with their values, sorted.
	set []string
	// strayBools are the values that stand after a boolean flag without "=", by the flag's name.
	strayBools map[string]string

	// API server connection and basics.
	csiAddress string
	kubeconfig string
	// kubeconfigFirst makes --kubeconfig win over KUBECONFIG, as in kubectl. The sidecar has it the other way round.
	kubeconfigFirst bool
	master          string
	qps             float64
	burst           int
	version         bool
	setMaxProcs     bool
	gates           features.Asked

	// Provisioning.
	namePrefix               string
	nameUUIDLength           int
	defaultFSType            string
	extraCreateMetadata      bool
	publishReadonly          bool
	preventModeConversion    bool
	strictTopology           bool
	immediateTopology        bool
	growToSourceSize         bool
	keepNodeTopology         bool
	deletionSecretNamespaces []string
	quietEvents              bool
	createAnnotations        []string
	createLabels             []string
	copyAnnotations          []string
	copyLabels               []string

	// Timing and concurrency.
	timeout         time.Duration
	createTimeout   time.Duration
	restoreTimeout  time.Duration
	cloneTimeout    time.Duration
	deleteTimeout   time.Duration
	retryStart      time.Duration
	retryMax        time.Duration
	workers         uint
	createWorkers   uint
	deleteWorkers   uint
	maxPerSource    uint
	cloneWorkers    uint
	snapshotSweep   time.Duration
	operationLeases bool
	markerDelay     time.Duration // has no effect
	drainTimeout    time.Duration

	// Storage capacity.
	capacity                  bool
	capacityOwnerLevel        int
	capacityPoll              time.Duration
	capacityWorkers           uint
	capacityImmediate         bool
	capacityAllowedTopologies bool
	capacityQPS               float32
	capacityBurst             int

	// Node deployment.
	nodeDeployment bool
	nodeImmediate  bool
	nodeBaseDelay  time.Duration
	nodeMaxDelay   time.Duration
	nodeCleanup    bool

	// Leader election.
	election          bool
	electionNamespace string
	leaseDuration     time.Duration
	renewDeadline     time.Duration
	retryPeriod       time.Duration
	electionLabels    labels

	// HTTP.
	httpEndpoint   string
	metricsAddress string
	metricsPath    string
	pprof          bool

	// Traces.
	otlpEndpoint string

	// Logging.
	logging *logsapi.LoggingConfiguration
}

// NewOptions returns options that no flag set has filled in yet.
func NewOptions() *Options { return &Options{logging: logsapi.NewLoggingConfiguration()} }

// flagGroup is a headed part of the usage text.
type flagGroup struct {
	title string
	flags *pflag.FlagSet
}

// groups returns all flags, bound to o and with their defaults, in the order of the usage text.
func (o *Options) groups() []flagGroup {
	groups := []struct {
		title string
		add   func(*pflag.FlagSet)
	}{
		{"API server connection and basics", o.addBasics},
		{"Provisioning", o.addProvisioning},
		{"Timing and concurrency", o.addTiming},
		{"Storage capacity", o.addCapacity},
		{"Node deployment (one instance per node, driver-local volumes)", o.addNode},
		{"Leader election", o.addElection},
		{"HTTP", o.addHTTP},
		{"Traces", o.addTraces},
		{"Logging", o.addLogging},
	}
	all := make([]flagGroup, 0, len(groups))
	for _, g := range groups {
		flags := pflag.NewFlagSet(g.title, pflag.ContinueOnError)
		flags.SortFlags = false
		g.add(flags)
		all = append(all, flagGroup{title: g.title, flags: flags})
	}
	return all
}

func (o *Options) addBasics(fs *pflag.FlagSet) {
	fs.StringVar(&o.csiAddress, "csi-address", "/run/csi/socket", "Socket of the CSI driver: an absolute path, alone or after unix://.")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "A kubeconfig `file`, needed only outside of a cluster. The environment variable KUBECONFIG wins over it.")
	fs.StringVar(&o.master, "master", "", "`URL` of the API server, alone or in place of the server that the kubeconfig names.")
	fs.Float64Var(&o.qps, "kube-api-qps", float64(cluster.CentralLimits.Provisioning.QPS), "Requests per second that each client for provisioning may send to the API server. 5 with --node-deployment, and where only --kube-api-burst is set. 0 means 5, negative means no limit.")
	fs.IntVar(&o.burst, "kube-api-burst", cluster.CentralLimits.Provisioning.Burst, "Burst of those requests, above zero. 10 with --node-deployment, and where only --kube-api-qps is set.")
	fs.BoolVar(&o.version, "version", false, "Print the version and exit.")
	fs.BoolFunc("automaxprocs", "Set GOMAXPROCS from the CPU limit of the container and log it. The environment variable GOMAXPROCS wins over it. Without either one processor is used, which is enough for hundreds of volumes a second.", o.askMaxProcs)
	fs.Var(&o.gates, "feature-gates", featureUsage())
}

func (o *Options) addProvisioning(fs *pflag.FlagSet) {
	fs.StringVar(&o.namePrefix, "volume-name-prefix", "pvc", "First part of the names of volumes and PersistentVolumes.")
	fs.IntVar(&o.nameUUIDLength, "volume-name-uuid-length", -1, "How many hexadecimal digits of the claim's UID the name ends in, 1 to 32. -1 means the whole UID with its dashes.")
	fs.StringVar(&o.defaultFSType, "default-fstype", "", "File system `type` of a volume whose class names none. Empty means that the driver chooses.")
	fs.BoolVar(&o.extraCreateMetadata, "extra-create-metadata", false, "Add the names of claim and PersistentVolume to the parameters of CreateVolume.")
	fs.BoolVar(&o.publishReadonly, "controller-publish-readonly", false, "Mark a PersistentVolume as read-only when the only access mode of the claim is ReadOnlyMany.")
	fs.BoolVar(&o.preventModeConversion, "prevent-volume-mode-conversion", true, "Refuse to change the volume mode on restore unless the snapshot's content is annotated for it.")
	fs.BoolVar(&o.strictTopology, "strict-topology", false, "With late binding, ask for the topology of the selected node and for no other.")
	fs.BoolVar(&o.immediateTopology, "immediate-topology", true, "With immediate binding, ask for the topology of the whole cluster. If false, ask for none unless the class has allowed topologies.")
	fs.BoolVar(&o.growToSourceSize, "grow-to-source-size", false, "Ask for the size of the source when a claim with a source asks for less, where it would be refused otherwise.")
	fs.BoolVar(&o.keepNodeTopology, "keep-node-topology", false, "With late binding and allowed topologies that name only some of the driver's keys, still ask for the whole topology of the selected node first.")
	fs.StringSliceVar(&o.deletionSecretNamespaces, "deletion-secret-namespaces", nil, "The only `namespaces` that secrets for the deletion of PersistentVolumes are read from, separated by commas. Empty means all.")
	fs.BoolVar(&o.quietEvents, "quiet-events", false, "Record on claims and PersistentVolumes only events that tell something new: one for all attempts of a claim, failures that differ from the last, and after a minute one that the volume is still being made.")
	fs.StringSliceVar(&o.createAnnotations, "create-metadata-annotations", nil, "Annotations of the claim to add to the parameters of CreateVolume: `keys`, or prefixes as in example.com/*, separated by commas.")
	fs.StringSliceVar(&o.createLabels, "create-metadata-labels", nil, "Labels of the claim to add to the parameters of CreateVolume: `keys`, or prefixes as in example.com/*.")
	fs.StringSliceVar(&o.copyAnnotations, "pv-copy-annotations", nil, "Annotations of the claim that its PersistentVolume gets, too: `keys`, or prefixes as in example.com/*. None of Kubernetes' own.")
	fs.StringSliceVar(&o.copyLabels, "pv-copy-labels", nil, "Labels of the claim that its PersistentVolume gets, too: `keys`, or prefixes as in example.com/*. None of Kubernetes' own.")
}

func (o *Options) addTiming(fs *pflag.FlagSet) {
	fs.DurationVar(&o.timeout, "timeout", 10*time.Second, "Deadline of each call of the driver.")
	fs.DurationVar(&o.createTimeout, "create-timeout", 0, "Deadline of CreateVolume for an empty volume, in place of --timeout. 0 means --timeout.")
	fs.DurationVar(&o.restoreTimeout, "restore-timeout", 0, "Deadline of CreateVolume for a volume that is filled from a snapshot. 0 means --timeout.")
	fs.DurationVar(&o.cloneTimeout, "clone-timeout", 0, "Deadline of CreateVolume for a volume that is a clone of another. 0 means --timeout.")
	fs.DurationVar(&o.deleteTimeout, "delete-timeout", 0, "Deadline of DeleteVolume. 0 means --timeout.")
	fs.DurationVar(&o.retryStart, "retry-interval-start", time.Second, "First wait after a failure; it doubles with each further one.")
	fs.DurationVar(&o.retryMax, "retry-interval-max", 5*time.Minute, "Longest wait after a failure.")
	fs.UintVar(&o.workers, "worker-threads", 100, "How many claims, and besides how many PersistentVolumes, are worked on at once. 0 means none.")
	fs.UintVar(&o.createWorkers, "create-threads", 0, "How many claims are worked on at once, in place of --worker-threads. 0 means --worker-threads.")
	fs.UintVar(&o.deleteWorkers, "delete-threads", 0, "How many PersistentVolumes are worked on at once, in place of --worker-threads. 0 means --worker-threads.")
	fs.UintVar(&o.maxPerSource, "max-creates-per-source", 0, "How many volumes are made at once from one snapshot, or as clones of one claim. Further claims wait. 0 means no limit.")
	fs.UintVar(&o.cloneWorkers, "cloning-protection-threads", 1, "How many sources of clones are released at once, with a driver that clones. 0 means none.")
	fs.DurationVar(&o.snapshotSweep, "snapshot-orphan-sweep-interval", 5*time.Minute, "Pause between two searches for snapshots that are protected for nothing. 0 or less means never.")
	fs.BoolVar(&o.operationLeases, "operation-leases", true, "Record each CreateVolume operation in a Lease in the driver's namespace before the driver is called, so that a later process finishes it whatever happens to this one. With false none is recorded; what earlier processes left is finished all the same.")
	fs.DurationVar(&o.markerDelay, "provisioning-marker-delay", 0, "Has no effect and will be removed: claims are not marked any more, see --operation-leases.")
	fs.DurationVar(&o.drainTimeout, "shutdown-drain-timeout", 20*time.Second, "How long running calls of the driver, and saving their results, may take after a signal to stop. Keep it below the pod's terminationGracePeriodSeconds.")
}

func (o *Options) addCapacity(fs *pflag.FlagSet) {
	fs.BoolVar(&o.capacity, "enable-capacity", false, "Publish CSIStorageCapacity objects. Needs the environment variable NAMESPACE, and POD_NAME unless objects have no owner.")
	fs.IntVar(&o.capacityOwnerLevel, "capacity-ownerref-level", 1, "Which ancestor of the pod owns the objects: 0 the pod, 1 its controller (ReplicaSet, StatefulSet, DaemonSet), 2 that one's controller (Deployment), and so on. Negative means no owner.")
	fs.DurationVar(&o.capacityPoll, "capacity-poll-interval", time.Minute, "How often the driver is asked again for each segment and class.")
	fs.UintVar(&o.capacityWorkers, "capacity-threads", 1, "How many objects are worked on at once. 0 means none.")
	fs.BoolVar(&o.capacityImmediate, "capacity-for-immediate-binding", false, "Publish for classes with immediate binding too.")
	fs.BoolVar(&o.capacityAllowedTopologies, "capacity-respect-allowed-topologies", false, "Publish for a class only segments that its allowed topologies admit.")
	fs.Float32Var(&o.capacityQPS, "kube-api-capacity-qps", cluster.CentralLimits.Capacity.QPS, "Requests per second of the client for these objects. 1 with --node-deployment, and where only --kube-api-capacity-burst is set. 0 means 5, negative means no limit.")
	fs.IntVar(&o.capacityBurst, "kube-api-capacity-burst", cluster.CentralLimits.Capacity.Burst, "Burst of those requests, above zero. 5 with --node-deployment, and where only --kube-api-capacity-qps is set.")
}

func (o *Options) addNode(fs *pflag.FlagSet) {
	fs.BoolVar(&o.nodeDeployment, "node-deployment", false, "Serve only claims and PersistentVolumes of this node. Needs the environment variable NODE_NAME.")
	fs.BoolVar(&o.nodeImmediate, "node-deployment-immediate-binding", true, "Compete with the other nodes for claims with immediate binding.")
	fs.DurationVar(&o.nodeBaseDelay, "node-deployment-base-delay", 20*time.Second, "The first try to take such a claim comes within this: at once on the node that comes first for the claim, where CSINodes can be read, else after a random part. It doubles with each conflict.")
	fs.DurationVar(&o.nodeMaxDelay, "node-deployment-max-delay", 60*time.Second, "Longest such delay.")
	fs.BoolVar(&o.nodeCleanup, "node-deployment-cleanup", false, "Let one instance, by a lease, look after what no other can: claims whose selected node has no driver, and PersistentVolumes, operation Leases and CSIStorageCapacity objects whose node is gone.")
}

func (o *Options) addElection(fs *pflag.FlagSet) {
	fs.BoolVar(&o.election, "leader-election", false, "Work only while holding a lease, so that several replicas can stand by.")
	fs.StringVar(&o.electionNamespace, "leader-election-namespace", "", "The `namespace` of the lease. Empty means the environment variable POD_NAMESPACE, else the service account's, else default.")
	fs.DurationVar(&o.leaseDuration, "leader-election-lease-duration", 15*time.Second, "How long others wait after the last renewal they saw. Must be above the renew deadline.")
	fs.DurationVar(&o.renewDeadline, "leader-election-renew-deadline", 10*time.Second, "How long the leader tries to renew before it gives up. Must be above 1.2 times the retry period.")
	fs.DurationVar(&o.retryPeriod, "leader-election-retry-period", 5*time.Second, "Pause between two tries to take or renew the lease.")
	fs.Var(&o.electionLabels, "leader-election-labels", "Labels that the lease carries.")
}

func (o *Options) addHTTP(fs *pflag.FlagSet) {
	fs.StringVar(&o.httpEndpoint, "http-endpoint", "", "`host:port` or :port to serve metrics, /healthz, /healthz/leader-election and /readyz on. Empty means no server.")
	fs.StringVar(&o.metricsAddress, "metrics-address", "", "Deprecated, use --http-endpoint, which takes the same `host:port`; only one of both may be set.")
	fs.StringVar(&o.metricsPath, "metrics-path", "/metrics", "The `path` of the metrics.")
	fs.BoolVar(&o.pprof, "enable-pprof", false, "Serve /debug/pprof/ as well, with no authentication.")
}

func (o *Options) addTraces(fs *pflag.FlagSet) {
	fs.StringVar(&o.otlpEndpoint, "otlp-endpoint", "", "`host:port` of a collector that traces are sent to, in OTLP over gRPC; alone or after http:// without encryption, after https:// with TLS. Empty means no traces.")
}

func (o *Options) addLogging(fs *pflag.FlagSet) {
	logsapi.AddFlags(o.logging, fs)
	// No flag reaches the gate of these four, here as in the program that this one replaces.
	for _, name := range []string{"log-text-split-stream", "log-text-info-buffer-size", "log-json-split-stream", "log-json-info-buffer-size"} {
		if f := fs.Lookup(name); f != nil {
			f.Usage = "Alpha, refused with any value but the default."
		}
	}
	usages := map[string]string{
		"logging-format":      "Format of the log: text or json.",
		"log-flush-frequency": "Longest time between two flushes of the log.",
		"v":                   "Verbosity of the log; 5 shows each call of the driver, without secrets.",
		"vmodule":             "Verbosity by source file, for the text format only.",
	}
	for name, usage := range usages {
		if f := fs.Lookup(name); f != nil {
			f.Usage = usage
		}
	}
}
