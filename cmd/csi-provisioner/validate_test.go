package main

import (
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	capacityEnv := environment{namespace: "ns", podName: "p-0"}
	tests := map[string]struct {
		args []string
		env  environment
		want []string // one phrase for each complaint, in order; none means valid
	}{
		"the defaults are fine": {},
		"all accepted forms of a socket address": {
			args: []string{"--csi-address=unix:///x/csi.sock"},
		},
		"a relative socket":                 {args: []string{"--csi-address=csi.sock"}, want: []string{`--csi-address: CSI address "csi.sock" is not accepted: give an absolute path`}},
		"a TCP address":                     {args: []string{"--csi-address=tcp://h:1"}, want: []string{"tcp://h:1"}},
		"unix: without slashes":             {args: []string{"--csi-address=unix:x"}, want: []string{"unix:x"}},
		"a path that fits no socket":        {args: []string{"--csi-address=/" + strings.Repeat("a", 107)}, want: []string{"--csi-address: CSI address"}},
		"no address":                        {args: []string{"--csi-address="}, want: []string{"--csi-address"}},
		"NaN is no rate":                    {args: []string{"--kube-api-qps=NaN"}, want: []string{"--kube-api-qps must be a number from -1000000000 to 1000000000, is NaN"}},
		"Inf is no rate":                    {args: []string{"--kube-api-qps=Inf"}, want: []string{"is +Inf"}},
		"more than any rate":                {args: []string{"--kube-api-qps=1e10"}, want: []string{"--kube-api-qps must be a number from"}},
		"the highest rates":                 {args: []string{"--enable-capacity", "--kube-api-qps=1e9", "--kube-api-capacity-qps=-1e9"}, env: capacityEnv},
		"no burst with a rate":              {args: []string{"--kube-api-burst=0"}, want: []string{"--kube-api-burst must be above zero"}},
		"no burst without a limit":          {args: []string{"--kube-api-qps=-1", "--kube-api-burst=0"}},
		"no burst with the default rate":    {args: []string{"--kube-api-qps=0", "--kube-api-burst=0"}},
		"an unknown gate":                   {args: []string{"--feature-gates=Foo=true"}, want: []string{"Foo: known are AllAlpha"}},
		"a retired gate":                    {args: []string{"--feature-gates=HonorPVReclaimPolicy=true"}},
		"a retired gate, off":               {args: []string{"--feature-gates=HonorPVReclaimPolicy=false,Foo=true"}, want: []string{"HonorPVReclaimPolicy", "Foo"}},
		"a UID of no digits":                {args: []string{"--volume-name-uuid-length=0"}, want: []string{"--volume-name-uuid-length must be -1 or 1 to 32, is 0"}},
		"a UID of -2 digits":                {args: []string{"--volume-name-uuid-length=-2"}, want: []string{"is -2"}},
		"a UID of 40 digits is accepted":    {args: []string{"--volume-name-uuid-length=40"}},
		"no prefix":                         {args: []string{"--volume-name-prefix="}, want: []string{"--volume-name-prefix must not be empty"}},
		"a prefix in upper case":            {args: []string{"--volume-name-prefix=PVC"}, want: []string{"--volume-name-prefix=PVC"}},
		"a prefix that ends in a dot":       {args: []string{"--volume-name-prefix=a."}, want: []string{"--volume-name-prefix=a."}},
		"a prefix that ends in a dash":      {args: []string{"--volume-name-prefix=a-"}},
		"a prefix that is too long":         {args: []string{"--volume-name-prefix=" + strings.Repeat("a", 217)}, want: []string{"253"}},
		"the longest prefix":                {args: []string{"--volume-name-prefix=" + strings.Repeat("a", 216)}},
		"a namespace that is none":          {args: []string{"--deletion-secret-namespaces=a,B"}, want: []string{`--deletion-secret-namespaces: "B"`}},
		"no timeout":                        {args: []string{"--timeout=0"}, want: []string{"--timeout must be above zero, is 0s"}},
		"no first wait":                     {args: []string{"--retry-interval-start=-1s"}, want: []string{"--retry-interval-start"}},
		"no longest wait":                   {args: []string{"--retry-interval-max=0"}, want: []string{"--retry-interval-max"}},
		"no threads are accepted":           {args: []string{"--worker-threads=0", "--cloning-protection-threads=0"}},
		"more threads than there can be":    {args: []string{"--create-threads=4294967296", "--delete-threads=4294967296", "--max-creates-per-source=4294967296"}, want: []string{"--create-threads is too large", "--delete-threads", "--max-creates-per-source"}},
		"no sweep is accepted":              {args: []string{"--snapshot-orphan-sweep-interval=-1s"}},
		"a drain that ends before it began": {args: []string{"--shutdown-drain-timeout=-1s"}, want: []string{"--shutdown-drain-timeout"}},
		"no poll matters only with capacity": {
			args: []string{"--capacity-poll-interval=0", "--kube-api-capacity-burst=0", "--kube-api-capacity-qps=NaN", "--capacity-threads=4294967296"},
		},
		"no poll": {
			args: []string{"--enable-capacity", "--capacity-poll-interval=0", "--kube-api-capacity-burst=0", "--capacity-threads=4294967296"}, env: capacityEnv,
			want: []string{"--capacity-poll-interval must be above zero", "--capacity-threads is too large", "--kube-api-capacity-burst"},
		},
		"patterns of keys": {
			args: []string{"--create-metadata-annotations=example.com/*,team", "--create-metadata-labels=", "--pv-copy-annotations=volume.kubernetes.io/*", "--pv-copy-labels=app.kubernetes.io/*"},
		},
		"patterns of keys that are none": {
			args: []string{"--create-metadata-annotations=*", "--create-metadata-labels=a*b,/*", "--pv-copy-annotations=a ,ok", "--pv-copy-labels=a,,b"},
			want: []string{`--create-metadata-annotations: "*": a * stands for`, `--create-metadata-labels: "a*b"`, `--create-metadata-labels: "/*"`, `--pv-copy-annotations: "a "`, `--pv-copy-labels: ""`},
		},
		"deadlines below zero": {
			args: []string{"--create-timeout=-1s", "--restore-timeout=-1s", "--clone-timeout=-1s", "--delete-timeout=-1s"},
			want: []string{"--create-timeout must not be negative, is -1s", "--restore-timeout", "--clone-timeout", "--delete-timeout"},
		},
		"deadlines like the others":        {args: []string{"--create-timeout=0", "--restore-timeout=0", "--clone-timeout=0", "--delete-timeout=0"}},
		"capacity without its environment": {args: []string{"--enable-capacity"}, want: []string{"NAMESPACE", "POD_NAME"}},
		"capacity without its pod":         {args: []string{"--enable-capacity"}, env: environment{namespace: "ns"}, want: []string{"--capacity-ownerref-level=-1"}},
		"capacity without an owner":        {args: []string{"--enable-capacity", "--capacity-ownerref-level=-1"}, env: environment{namespace: "ns"}},
		"capacity with its environment":    {args: []string{"--enable-capacity"}, env: capacityEnv},
		"POD_NAMESPACE is no NAMESPACE":    {args: []string{"--enable-capacity"}, env: environment{podNamespace: "ns", podName: "p"}, want: []string{"NAMESPACE"}},
		"node mode without its node":       {args: []string{"--node-deployment"}, want: []string{"--node-deployment needs the environment variable NODE_NAME: set it from the field spec.nodeName"}},
		"node mode with its node":          {args: []string{"--node-deployment"}, env: environment{nodeName: "n1"}},
		"delays below zero": {
			args: []string{"--node-deployment", "--node-deployment-base-delay=-1s", "--node-deployment-max-delay=-2s"}, env: environment{nodeName: "n1"},
			want: []string{"--node-deployment-base-delay must not be negative, is -1s", "--node-deployment-max-delay must not be negative, is -2s"},
		},
		"delays matter only with nodes": {args: []string{"--node-deployment-base-delay=-1s"}},
		"the lease of the clean-up": {
			args: []string{"--node-deployment", "--node-deployment-cleanup", "--leader-election-namespace=a/b", "--leader-election-labels=a b:c"}, env: environment{nodeName: "n1"},
			want: []string{`--leader-election-namespace: "a/b"`, "--leader-election-labels: a b:c"},
		},
		"no clean-up without nodes": {args: []string{"--node-deployment-cleanup", "--leader-election-namespace=a/b"}},
		"the relation of the election's durations": {
			args: []string{"--leader-election", "--leader-election-lease-duration=5s", "--leader-election-renew-deadline=10s", "--leader-election-retry-period=5s"},
			want: []string{"lease-duration (5s) must be at least 1s and above --leader-election-renew-deadline (10s), which must be above 1.2 times --leader-election-retry-period (5s)"},
		},
		"the relation is none without election": {args: []string{"--leader-election-lease-duration=5s"}},
		"1.2 times the retry period is not above it": {
			args: []string{"--leader-election", "--leader-election-renew-deadline=6s", "--leader-election-retry-period=5s"}, want: []string{"(6s)"},
		},
		"less than a second": {
			args: []string{"--leader-election", "--leader-election-lease-duration=900ms", "--leader-election-renew-deadline=800ms", "--leader-election-retry-period=100ms"}, want: []string{"(900ms)"},
		},
		"no retry period":                    {args: []string{"--leader-election", "--leader-election-retry-period=0"}, want: []string{"(0s)"}},
		"labels that the API server refuses": {args: []string{"--leader-election", "--leader-election-labels=a b:c,d:e!"}, want: []string{"a b:c", "d:e!"}},
		"labels without election":            {args: []string{"--leader-election-labels=a b:c"}},
		"a lease namespace that is none":     {args: []string{"--leader-election", "--leader-election-namespace=a/b"}, want: []string{`"a/b"`}},
		"both addresses, with both values":   {args: []string{"--http-endpoint=:1", "--metrics-address=:2"}, want: []string{"--http-endpoint=:1 and --metrics-address=:2 exclude each other"}},
		"a port without a colon":             {args: []string{"--http-endpoint=8080"}, want: []string{"--http-endpoint=8080 must be host:port or :port"}},
		"a port beyond all ports":            {args: []string{"--metrics-address=:65536"}, want: []string{"--metrics-address=:65536"}},
		"a metrics path without a slash":     {args: []string{"--http-endpoint=:1", "--metrics-path=m"}, want: []string{`--metrics-path=m must begin with "/"`}},
		"a metrics path without a server":    {args: []string{"--metrics-path=m"}},
		"no metrics path":                    {args: []string{"--http-endpoint=:1", "--metrics-path="}, want: []string{"--metrics-path"}},
		"the path of the health page":        {args: []string{"--http-endpoint=:1", "--metrics-path=/healthz/leader-election"}, want: []string{"taken"}},
		"the path of readiness":              {args: []string{"--metrics-address=:1", "--metrics-path=/readyz"}, want: []string{"taken"}},
		"a path of pprof, with it":           {args: []string{"--http-endpoint=:1", "--enable-pprof", "--metrics-path=/debug/pprof/"}, want: []string{"taken"}},
		"a path of pprof, without it":        {args: []string{"--http-endpoint=:1", "--metrics-path=/debug/pprof/"}},
		"the root is a metrics path":         {args: []string{"--http-endpoint=:1", "--metrics-path=/"}},
		"a path that is a pattern":           {args: []string{"--http-endpoint=:1", "--metrics-path=/{x}"}, want: []string{"clean"}},
		"a path with a double slash":         {args: []string{"--http-endpoint=:1", "--metrics-path=//m"}, want: []string{"clean"}},
		"a collector":                        {args: []string{"--otlp-endpoint=otel-collector:4317"}, env: environment{otlpHeaders: "api-key=x", traceSampler: "traceidratio", traceSamplerArg: "0.1"}},
		"a collector with TLS":               {args: []string{"--otlp-endpoint=https://otel-collector:4317"}},
		"a collector without a port":         {args: []string{"--otlp-endpoint=http://otel-collector"}, want: []string{`--otlp-endpoint must be host:port, http://host:port or https://host:port, is "http://otel-collector"`}},
		"a collector's path":                 {args: []string{"--otlp-endpoint=http://otel-collector:4318/v1/traces"}, want: []string{"--otlp-endpoint"}},
		"wrong variables for traces":         {args: []string{"--otlp-endpoint=c:1"}, env: environment{otlpHeaders: "x", traceSampler: "some"}, want: []string{"the environment variable OTEL_EXPORTER_OTLP_HEADERS must be key=value", "the environment variable OTEL_TRACES_SAMPLER must be"}},
		"the same, without traces":           {env: environment{otlpHeaders: "x", traceSampler: "some"}},
		"json logs":                          {args: []string{"--logging-format=json", "-v=5"}},
		"an unknown log format":              {args: []string{"--logging-format=xml"}, want: []string{"logging configuration: format"}},
		"vmodule with json":                  {args: []string{"--logging-format=json", "--vmodule=a=1"}, want: []string{"logging configuration: vmodule"}},
		"no flush":                           {args: []string{"--log-flush-frequency=0"}, want: []string{"logging configuration: flushFrequency"}},
		"an alpha flag of the log":           {args: []string{"--log-text-split-stream"}, want: []string{"LoggingAlphaOptions"}},
		"another alpha flag of the log":      {args: []string{"--log-json-info-buffer-size=1Ki"}, want: []string{"LoggingAlphaOptions"}},
		"alpha flags at their default":       {args: []string{"--log-text-split-stream=false", "--log-json-info-buffer-size=0"}},
		"a stray false":                      {args: []string{"--leader-election", "false"}},
		"several mistakes are all named": {
			args: []string{"--csi-address=x", "--feature-gates=Foo=true", "--timeout=0", "--enable-capacity", "--node-deployment", "--metrics-path=m", "--http-endpoint=:1", "--logging-format=xml"},
			want: []string{"--csi-address", "Foo", "--timeout", "NAMESPACE", "POD_NAME", "NODE_NAME", "--metrics-path", "logging configuration"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			if err := parse(t, tc.args...).Validate(tc.env); err != nil {
				got = strings.Split(err.Error(), "\n")
			}
			if len(got) != len(tc.want) {
				t.Fatalf("complaints %q, want %d: %q", got, len(tc.want), tc.want)
			}
			for i, want := range tc.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("complaint %q does not mention %q", got[i], want)
				}
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args []string
		env  environment
		want []string // one phrase each, in order
	}{
		"keys that are never passed on": {
			args: []string{"--create-metadata-annotations=provisioner.storage.kubernetes.io/provisioning-in-progress", "--pv-copy-annotations=a/*,pv.kubernetes.io/*", "--pv-copy-labels=topology.kubernetes.io/zone"},
			want: []string{`--create-metadata-annotations: "provisioner`, `--pv-copy-annotations: "pv.kubernetes.io/*" matches nothing`, `--pv-copy-labels: "topology`},
		},
		"the defaults":                {},
		"a stray false":               {args: []string{"--leader-election", "false"}, want: []string{`"false" after --leader-election is ignored`}},
		"a GA gate":                   {args: []string{"--feature-gates=Topology=true"}, want: []string{"Topology"}},
		"a retired gate":              {args: []string{"--feature-gates=HonorPVReclaimPolicy=true"}, want: []string{"HonorPVReclaimPolicy"}},
		"the gate that does nothing":  {args: []string{"--feature-gates=ReleaseLeaderElectionOnExit=true"}, want: []string{"always released"}},
		"a UID of 40 digits":          {args: []string{"--volume-name-uuid-length=40"}, want: []string{"means 32"}},
		"no threads":                  {args: []string{"--worker-threads=0", "--cloning-protection-threads=0", "--capacity-threads=0"}, want: []string{"--worker-threads=0", "--cloning-protection-threads=0"}},
		"no threads to create":        {args: []string{"--worker-threads=0", "--delete-threads=1"}, want: []string{"without --create-threads: no claim"}},
		"no threads to delete":        {args: []string{"--worker-threads=0", "--create-threads=1"}, want: []string{"without --delete-threads: no PersistentVolume"}},
		"threads of each kind":        {args: []string{"--worker-threads=0", "--create-threads=1", "--delete-threads=1"}},
		"no capacity threads":         {args: []string{"--enable-capacity", "--capacity-threads=0"}, want: []string{"--capacity-threads=0"}},
		"node mode with election":     {args: []string{"--node-deployment", "--leader-election"}, want: []string{"only one of them works"}},
		"a clean-up of no nodes":      {args: []string{"--node-deployment-cleanup"}, want: []string{"--node-deployment-cleanup does nothing without --node-deployment"}},
		"a clean-up of nodes":         {args: []string{"--node-deployment", "--node-deployment-cleanup"}},
		"swapped delays":              {args: []string{"--node-deployment", "--node-deployment-base-delay=60s", "--node-deployment-max-delay=20s"}, want: []string{"--node-deployment-max-delay (20s)"}},
		"claims are not marked":       {args: []string{"--provisioning-marker-delay=0"}, want: []string{"--provisioning-marker-delay has no effect"}},
		"the deprecated address":      {args: []string{"--metrics-address=:1"}, want: []string{"use --http-endpoint=:1"}},
		"pprof without a server":      {args: []string{"--enable-pprof"}, want: []string{"--enable-pprof"}},
		"KUBECONFIG over the flag":    {args: []string{"--kubeconfig=/b"}, env: environment{kubeconfig: "/a"}, want: []string{"KUBECONFIG (/a) wins over --kubeconfig (/b)"}},
		"KUBECONFIG alone":            {env: environment{kubeconfig: "/a"}},
		"a lease of a part of second": {args: []string{"--leader-election", "--leader-election-lease-duration=10900ms", "--leader-election-renew-deadline=10500ms"}, want: []string{"whole seconds"}},
		"a lease that is too short":   {args: []string{"--leader-election", "--leader-election-lease-duration=5s", "--leader-election-renew-deadline=10s", "--leader-election-retry-period=5s"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := parse(t, tc.args...).Warnings(tc.env)
			if len(got) != len(tc.want) {
				t.Fatalf("warnings %q, want %d", got, len(tc.want))
			}
			for i, want := range tc.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("warning %q does not mention %q", got[i], want)
				}
			}
		})
	}
}
