package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Options describes a control plane. The zero value is etcd, kube-apiserver and kube-controller-manager.
type Options struct {
	// BinDir is the folder of the binaries. Default: what $CLUSTER_BIN names, else bin/cluster of the repository.
	BinDir string
	// Dir gets data, logs, keys and kubeconfigs. Default: a new temporary folder that Stop removes.
	Dir string
	// Scheduler starts kube-scheduler as well.
	Scheduler bool
	// NoControllerManager leaves kube-controller-manager out: nothing binds claims, makes service accounts or
	// collects garbage then.
	NoControllerManager bool
	// APIServerArgs and ControllerManagerArgs are appended to the arguments; of a repeated scalar flag the last wins.
	APIServerArgs, ControllerManagerArgs []string
	// Logf, if not nil, is told each step of Start, as a printf-like line without a line break.
	Logf func(format string, args ...any)
}

// Cluster is a running control plane. Its methods may be called concurrently, unless they say otherwise.
type Cluster struct {
	opts      Options
	binDir    string
	dir       string
	removeDir bool
	pki       *pki
	ports     ports
	admin     *rest.Config
	clientset *kubernetes.Clientset

	mu        sync.Mutex
	processes map[string]*Process // name of the binary → the child; guarded by mu
}

// Start returns a control plane that is ready: claims get bound, service accounts get made. It takes some five
// seconds. ctx bounds Start only; the cluster lives until Stop. After an error nothing is left running.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	const tries = 3
	for try := 1; ; try++ {
		c, err := start(ctx, opts)
		// A port that was free a moment ago may have been taken since.
		if err == nil || try == tries || !errors.Is(err, errEnded) {
			return c, err
		}
		if opts.Logf != nil {
			opts.Logf("another try, since %v", err)
		}
	}
}

func start(ctx context.Context, opts Options) (*Cluster, error) {
	want := []string{etcdBinary, apiServerBinary}
	if !opts.NoControllerManager {
		want = append(want, controllerManagerBinary)
	}
	if opts.Scheduler {
		want = append(want, schedulerBinary)
	}
	binDir, err := findBinaries(opts.BinDir, want...)
	if err != nil {
		return nil, err
	}
	c := &Cluster{opts: opts, binDir: binDir, dir: opts.Dir, processes: map[string]*Process{}}
	if err := c.prepare(); err != nil {
		c.Stop()
		return nil, fmt.Errorf("start a control plane: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("two minutes have passed"))
	defer cancel()
	for _, name := range want {
		begin := time.Now()
		if err := c.startComponent(ctx, name); err != nil {
			c.Stop()
			return nil, fmt.Errorf("start a control plane: %w", err)
		}
		if opts.Logf != nil {
			opts.Logf("%s is ready (%.1fs)", name, time.Since(begin).Seconds())
		}
	}
	return c, nil
}

// prepare makes folder, keys, ports and clients.
func (c *Cluster) prepare() (err error) {
	if c.dir == "" {
		c.removeDir = true
		if c.dir, err = os.MkdirTemp("", "control-plane-"); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	if c.pki, err = newPKI(c.dir); err != nil {
		return err
	}
	if c.ports, err = freePorts(); err != nil {
		return err
	}
	c.admin = &rest.Config{
		Host:            fmt.Sprintf("https://127.0.0.1:%d", c.ports.apiServer),
		BearerToken:     c.pki.token,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.pki.caCert},
		QPS:             -1,
		UserAgent:       "test-admin",
	}
	if c.clientset, err = kubernetes.NewForConfig(c.admin); err != nil {
		return err
	}
	return c.writeKubeconfig(c.Kubeconfig(), c.pki.token, "default")
}

// startComponent starts one program and waits until it is ready.
func (c *Cluster) startComponent(ctx context.Context, name string) error {
	args, ready, err := c.component(name)
	if err != nil {
		return err
	}
	p, err := StartProcess(Command{
		Name: name, Path: filepath.Join(c.binDir, name), Args: args, Dir: c.dir, LogFile: c.LogFile(name),
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.processes[name] = p
	c.mu.Unlock()
	return p.WaitReady(ctx, ready)
}

// Stop kills all components and removes the temporary folder. It may be called more than once.
func (c *Cluster) Stop() {
	for _, name := range []string{schedulerBinary, controllerManagerBinary, apiServerBinary, etcdBinary} {
		if p := c.process(name); p != nil {
			p.Stop(0)
		}
	}
	if c.removeDir {
		_ = os.RemoveAll(c.dir) // A leftover in the temporary folder harms nobody.
	}
}

// StopAPIServer ends kube-apiserver alone, as a node that dies would after a moment of grace. etcd keeps the
// state. Not to be called concurrently with StartAPIServer.
func (c *Cluster) StopAPIServer() {
	c.process(apiServerBinary).Stop(2 * time.Second)
}

// StartAPIServer starts kube-apiserver again on the same port after StopAPIServer, and waits until it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	if c.process(apiServerBinary).Running() {
		return fmt.Errorf("start %s: it is running", apiServerBinary)
	}
	return c.startComponent(ctx, apiServerBinary)
}

// Dir is the folder with logs, keys and kubeconfigs.
func (c *Cluster) Dir() string { return c.dir }

// LogFile is where the component of that name ("etcd", "kube-apiserver", …) logs to.
func (c *Cluster) LogFile(name string) string { return filepath.Join(c.dir, name+".log") }

// Config returns the admin's client config (in system:masters, without a rate limit). It belongs to the caller.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.admin) }

// Client returns the admin's client.
func (c *Cluster) Client() kubernetes.Interface { return c.clientset }

// PIDs returns the process ids of what runs, in no order that means anything but always the same.
func (c *Cluster) PIDs() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	var pids []int
	for _, p := range c.processes {
		if p.Running() {
			pids = append(pids, p.PID())
		}
	}
	slices.Sort(pids)
	return pids
}

func (c *Cluster) process(name string) *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.processes[name]
}
