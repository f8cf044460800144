// Command csi-provisioner is the sidecar that stands beside a CSI driver and creates and deletes its volumes
// for PersistentVolumeClaims.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/process"
)

// version of this build; set with -ldflags "-X main.version=…".
var version = "unknown"

const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

func main() {
	surviveClientGo()
	p := program{
		args: os.Args, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv,
		accountDir: process.ServiceAccountDir, terminationLog: process.TerminationLog,
		run: run, exit: os.Exit,
	}
	os.Exit(p.main())
}

// surviveClientGo makes the goroutines of client-go go on after a panic, which they log, and count it. By default they
// end the process. It must be called before any of them runs.
func surviveClientGo() {
	utilruntime.ReallyCrash = false
	utilruntime.PanicHandlers = append(utilruntime.PanicHandlers, func(context.Context, any) { loop.CountPanic("client-go") })
}

// program is the process with its surroundings, so that tests can give it others.
type program struct {
	args           []string
	stdout, stderr io.Writer
	getenv         func(string) string
	accountDir     string // of the service account
	terminationLog string // file for the last words
	run            func(context.Context, Config) error
	exit           func(code int) // for the second signal, which waits for nothing
}

// main returns the exit code: 0 for a clean end, 2 for a command line that cannot be read, 1 for the rest.
func (p *program) main() int {
	switch command, err := commandOf(p.args[1:]); {
	case err != nil:
		return p.usage(err)
	case command == explainCommand:
		return p.query(newExplainOptions(), p.args[1:])
	case command == auditCommand:
		return p.query(newAuditOptions(), p.args[1:])
	case command == operationsCommand:
		return p.query(newOperationsOptions(), p.args[1:])
	case command == versionCommand:
		return p.printVersion()
	case command == helpCommand:
		return p.printHelp(writeHelp)
	}
	return p.serve()
}

// serve is main for the command run.
func (p *program) serve() int {
	opts := NewOptions()
	switch err := opts.Parse(p.args[1:]); {
	case errors.Is(err, pflag.ErrHelp):
		return p.printHelp(writeHelp)
	case err != nil:
		return p.usage(err)
	case opts.version:
		return p.printVersion()
	}
	defer logs.FlushLogs()
	env := readEnvironment(p.getenv, p.accountDir)
	logger, problem := setUp(opts, env)
	if problem != nil {
		for line := range strings.SplitSeq(problem.Error(), "\n") {
			logger.Error(errors.New(line), "Invalid configuration")
		}
		p.lastWords(problem)
		return exitError
	}
	cfg, err := opts.Complete(env, version)
	if err == nil {
		ctx, cancel := process.Signals(klog.NewContext(context.Background(), logger), func(s os.Signal) {
			logger.Error(nil, "Second signal, not waiting any longer", "signal", s.String())
			logs.FlushLogs()
			p.exit(exitError)
		})
		defer cancel()
		err = p.run(ctx, cfg)
	}
	if err != nil {
		logger.Error(err, "Ending")
		p.lastWords(err)
		return exitError
	}
	logger.Info("Stopped")
	return exitOK
}

// usage tells what is wrong with the command line.
func (p *program) usage(err error) int {
	name := filepath.Base(p.args[0])
	fmt.Fprintf(p.stderr, "%s: %v\nSee %s --help.\n", name, err, name)
	p.lastWords(err)
	return exitUsage
}

func (p *program) printVersion() int {
	fmt.Fprintf(p.stdout, "%s %s\n", p.args[0], version)
	return exitOK
}

func (p *program) printHelp(write func(io.Writer) error) int {
	if err := write(p.stdout); err != nil {
		return exitError
	}
	return exitOK
}

// setUp starts the log and writes its first lines; the error joins all complaints about flags and environment.
func setUp(opts *Options, env environment) (klog.Logger, error) {
	problem := opts.Validate(env)
	// A wrong logging configuration is among the complaints: then the log stays as it is.
	if len(logsapi.Validate(opts.logging, nil, nil)) == 0 {
		if err := logsapi.ValidateAndApply(opts.logging, nil); err != nil {
			problem = errors.Join(problem, fmt.Errorf("logging configuration: %w", err))
		}
	}
	logger := klog.Background()
	logger.Info("Version", "version", version)
	logger.Info("Options", "given", opts.set)
	for _, warning := range opts.Warnings(env) {
		logger.Info("Warning about the configuration", "warning", warning)
	}
	if problem == nil {
		setUpMemory(logger, env)
		setUpProcs(logger, env, opts.setMaxProcs)
	}
	return logger, problem
}

// lastWords leaves err where the kubelet looks for it. That it cannot is no news outside of a container.
func (p *program) lastWords(err error) {
	if err := process.WriteTermination(p.terminationLog, err.Error()); err != nil {
		klog.Background().V(4).Info("No termination message", "reason", err.Error())
	}
}
