package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
)

// explain is main for the command explain: it tells what the sidecar would do about a claim or a PersistentVolume, and
// ends. It writes nothing to the cluster. The exit code is 0 when there is an answer, whatever it is, 2 for a wrong
// command line, and 1 when something that counts cannot be read.
func (p *program) explain(args []string) int {
	opts := newExplainOptions()
	env := readEnvironment(p.getenv, p.accountDir)
	err := opts.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return p.printHelp(writeExplainHelp)
	case err == nil && opts.version:
		return p.printVersion()
	case err == nil:
		err = opts.Validate(env)
	}
	if err != nil {
		p.complain(err)
		fmt.Fprintf(p.stderr, "See %s %s --help.\n", p.args[0], explainCommand)
		return exitUsage
	}
	defer logs.FlushLogs()
	logger, err := opts.startLog()
	if err == nil {
		ctx := klog.NewContext(context.Background(), logger)
		err = p.answer(ctx, opts, env)
	}
	if err != nil {
		p.complain(err)
		return exitError
	}
	return exitOK
}

// answer asks and prints.
func (p *program) answer(ctx context.Context, opts *explainOptions, env environment) error {
	for _, warning := range opts.Warnings(env) {
		p.complain(errors.New("warning: " + warning))
	}
	cfg, err := opts.Complete(env, version)
	if err != nil {
		return err
	}
	report, err := explainNow(ctx, cfg)
	if err != nil {
		return err
	}
	if opts.output == outputJSON {
		return report.writeJSON(p.stdout)
	}
	return report.writeText(p.stdout)
}

func (p *program) complain(err error) {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintf(p.stderr, "%s %s: %s\n", p.args[0], explainCommand, line)
	}
}

// startLog starts a log on stderr when -v or another flag of the log asks for one. What there is to say is said on
// stdout; a log beside it is for those who look for a fault.
func (o *explainOptions) startLog() (klog.Logger, error) {
	if !o.wantsLog() {
		klog.LogToStderr(false)
		klog.SetOutput(io.Discard)
		return klog.Background(), nil
	}
	if err := logsapi.ValidateAndApply(o.logging, nil); err != nil {
		return klog.Background(), fmt.Errorf("logging configuration: %w", err)
	}
	return klog.Background(), nil
}
