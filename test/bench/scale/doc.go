// SPDX-License-Identifier: Apache-2.0

// Package scale shows how the steps behave with up to 512 nodes, on one machine and without a cluster:
//
//	go test -run='^$' -bench='Scale$' -benchtime=1x -timeout=0 ./test/bench/scale
//	go test -run='^$' -bench='ScaleOnCluster$' -benchtime=1x -timeout=0 ./test/bench/scale
//
// docs/project/scale.md lists the limits that follow, test/bench/results has the tables.
//
// # Without a cluster
//
//   - Steps: the code of sync-repo, train and teardown, in one process. provision's objects are built, not applied.
//   - Agents: the real servers, with TLS and a volume for each node, all in one process on the same cores as the steps.
//   - Ranks: in the table steps each agent answers for 8 ranks without starting processes. In the table processes they are real:
//     supervisor, shim and a shell script.
//   - API server: client-go's fake in the steps' process. It counts requests, answers at once, and its pods count as memory of the steps.
//   - Network: loopback. A pull from another node takes a second longer than it would, so that the waves are visible.
//
// # On a real control plane
//
//   - etcd, API server, controllers, scheduler, CoreDNS: the local cluster's programs, with its limits of requests per second, and files in
//     memory, in a network namespace of the benchmark.
//   - Steps: provision, sync-repo's sending, train, teardown, mlenv status and the reaper, with the clients of a pod. No part of preflight,
//     check-fabric or git. The TLS handshakes are those with agents, and provision's first with the API server.
//   - Kubelets: a stand-in, kubelets_test.go, which writes Leases of nodes every 20 s and the status of pods. A pod is ready when its agent
//     listens. There are no images, probes, volumes, init containers or events of kubelets. KWOK would run no agents.
//   - Agents: the real servers at the pods' addresses, in the process of that stand-in, which
//     starts eight at a time and leaves the cores to
//     the other programs (nice). They find each other by CoreDNS.
//   - Ranks: stand-ins, as above. Claims: two volumes that exist, and one folder for all nodes.
//   - Tekton: only its kinds; the benchmark writes the status of PipelineRun and TaskRuns.
//   - Kueue: the manager with its webhooks and its configuration but without its visibility API, as a process next to the control plane. It
//     starts after the other steps, for one more environment, whose queue has a quota for exactly its nodes.
package scale
