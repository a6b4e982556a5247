// The model service of TARSy for the benchmark: waits, then answers with text that ends in a score.
//
// It is built inside a checkout of TARSy, whose messages it imports; see docs/benchmarks.md.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"

	llmv1 "github.com/codeready-toolchain/tarsy/proto"
)

type model struct {
	llmv1.UnimplementedLLMServiceServer
	latency time.Duration
	answer  string
}

func (m *model) Generate(_ *llmv1.GenerateRequest, stream grpc.ServerStreamingServer[llmv1.GenerateResponse]) error {
	time.Sleep(m.latency)
	text := &llmv1.GenerateResponse_Text{Text: &llmv1.TextDelta{Content: m.answer}}
	if err := stream.Send(&llmv1.GenerateResponse{Content: text}); err != nil {
		return err
	}
	usage := &llmv1.UsageInfo{InputTokens: 30000, OutputTokens: 600, TotalTokens: 30600}
	return stream.Send(&llmv1.GenerateResponse{Content: &llmv1.GenerateResponse_Usage{Usage: usage}, IsFinal: true})
}

func main() {
	latency := flag.Duration("latency", 0, "wait before each answer")
	size := flag.Int("answer-bytes", 2500, "about the size of an answer")
	flag.Parse()
	sentence := "The agent compared the pods before it concluded. "
	answer := strings.Repeat(sentence, 1+*size/len(sentence)) + "\n72"
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	llmv1.RegisterLLMServiceServer(server, &model{latency: *latency, answer: answer})
	fmt.Println(listener.Addr())
	log.Fatal(server.Serve(listener))
}
