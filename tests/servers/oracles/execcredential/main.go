// Command execcredential is a client of Kubernetes as kubelet is one: client-go reads the kubeconfig named on the
// command line, and gets its certificates from the exec plugin named there.
//
// Each line of standard input is a path to GET, after "reconnect " over a new connection. Each response is one line of
// JSON. The plugin shares this process's standard error.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/metrics"
)

type response struct {
	Status int    `json:"status"`
	Error  string `json:"error"`
	// Runs counts the plugin's runs since the start, by exit code.
	Runs runs `json:"runs"`
}

// runs is client-go's metric of the calls of exec plugins.
type runs map[int]int

func (r runs) Increment(exitCode int, _ string) { r[exitCode]++ }

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(kubeconfig string) error {
	pluginRuns := runs{}
	metrics.Register(metrics.RegisterOpts{ExecPluginCalls: pluginRuns})
	// As buildKubeletClientConfig in k8s.io/kubernetes/cmd/kubelet/app does without rotateCertificates.
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}, &clientcmd.ConfigOverrides{},
	).ClientConfig()
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	output := json.NewEncoder(os.Stdout)
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		path, reconnects := strings.CutPrefix(input.Text(), "reconnect ")
		if reconnects {
			utilnet.CloseIdleConnectionsFor(client.Transport)
		}
		result := response{Runs: pluginRuns}
		if result.Status, err = get(client, config.Host+path); err != nil {
			result.Error = err.Error()
		}
		if err := output.Encode(result); err != nil {
			return err
		}
	}
	return input.Err()
}

func get(client *http.Client, url string) (int, error) {
	answer, err := client.Get(url)
	if err != nil {
		return 0, err
	}
	return answer.StatusCode, answer.Body.Close()
}
